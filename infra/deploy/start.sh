#!/bin/sh
# Start a part of the log in a container: start.sh committer, start.sh server, ...
set -eu

# What listens in a container is for others: all addresses for HTTP, and for the leader the one that
# it names to writers.
: "${COMMITLOG_HOST:=0.0.0.0}"
: "${COMMITLOG_PORT:=2333}"
: "${COMMITLOG_SOCKET_PORT:=2334}"
if [ -z "${COMMITLOG_SOCKET_HOST:-}" ]; then
    COMMITLOG_SOCKET_HOST=$(hostname -I | cut -d ' ' -f 1)
fi
: "${COMMITLOG_SOCKET_HOST:=127.0.0.1}"
export COMMITLOG_HOST COMMITLOG_PORT COMMITLOG_SOCKET_PORT COMMITLOG_SOCKET_HOST

exec commitlog "$@"
