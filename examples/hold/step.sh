#!/bin/bash
# Stands for your work.
set -eu

rm -f -- "$1"
