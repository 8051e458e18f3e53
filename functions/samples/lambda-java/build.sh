#!/bin/sh
# Compiles the handler, fetches AWS's client, and makes ./jre. Needs Maven and a JDK of version 17 or later with jlink.
set -eu
cd "$(dirname "$0")"
mvn -q -B package dependency:copy-dependencies
rm -rf jre
# What the client's serializers ask for, too.
jlink --add-modules java.se,jdk.unsupported --strip-debug --no-header-files --no-man-pages --output jre
