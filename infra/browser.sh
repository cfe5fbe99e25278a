#!/usr/bin/env bash
# Print where a Chromium for the page's tests is; as root on Debian, install one if there is none.
set -euo pipefail

find_browser() {
    command -v chromium || command -v chromium-browser || command -v google-chrome
}

if find_browser; then exit; fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "browser: installing chromium" >&2
    apt-get update -qq >&2
    DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends chromium >/dev/null
    find_browser && exit
fi
echo "browser: there is no Chromium. Install it (Debian: apt-get install chromium)" >&2
exit 1
