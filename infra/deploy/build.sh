#!/bin/sh
# Build the image where there is no container engine nor registry, and run each part's command in it.
# Needs root and Debian's packages buildah and debootstrap: build.sh FOLDER [RELEASE]
set -eu

folder=${1:?a folder for the image and its base}
release=${2:-trixie}
here=$(cd "$(dirname "$0")/../.." && pwd)
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)

builder() {
    BUILDAH_ISOLATION=chroot buildah --storage-driver vfs \
        --root "$folder/storage" --runroot "$folder/run" "$@"
}

# The base: what a registry's debian:RELEASE-slim has, made from Debian's own packages.
[ -d "$folder/base" ] || debootstrap --variant=minbase "$release" "$folder/base"
made=$(builder from scratch)
builder copy --quiet "$made" "$folder/base" /
# What a mirror of the package index needs of this machine: its certificates.
if [ -n "${PIP_CERT:-}" ]; then
    builder copy --quiet "$made" "$PIP_CERT" /etc/mirror.crt
    builder config --env PIP_CERT=/etc/mirror.crt --env SSL_CERT_FILE=/etc/mirror.crt "$made"
fi
builder commit --quiet --rm "$made" localhost/base > /dev/null

builder bud --quiet --network host --build-arg BASE=localhost/base \
    -f "$here/infra/deploy/Containerfile" -t commitlog "$here" > /dev/null

made=$(builder from localhost/commitlog)
for part in init committer index server rows maintain; do
    builder run --user 10001 "$made" -- start.sh "$part" --help > /dev/null
done
builder run --user 10001 "$made" -- start.sh version
builder rm "$made" > /dev/null
