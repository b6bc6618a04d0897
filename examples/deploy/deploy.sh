#!/bin/sh
# Usage: sh deploy.sh RELEASE
#
# One deploy at a time. Ends with 75 and says who deploys if that is somebody else, with 79 if the
# lease was lost and the deploy ended, else as the deploy does.
set -eu

KEY=deploy/shop
RELEASE=$1

# The variables of a lease may have been inherited from an earlier deploy.
if [ "${LOCK_KEY-}" != "$KEY" ] ||
    ! lockkeeper refresh --quiet --fencing-token "$LOCK_FENCING_TOKEN" "$KEY"; then
    # Runs this script again, under a lease.
    WHO="$(id -un) on $(uname -n) (release $RELEASE)"
    exec lockkeeper exec -n -T 30m --pass-api-key --owner "$WHO" "$KEY" -- sh "$0" "$RELEASE"
fi

echo "deploying $RELEASE as number $LOCK_FENCING_TOKEN"
sh steps.sh "$RELEASE"
ln -sfn "releases/$RELEASE" current
echo "deployed $RELEASE"
