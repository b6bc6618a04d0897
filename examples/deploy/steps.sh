#!/bin/sh
# Stands for your steps.
set -eu

mkdir -p "releases/$1"
