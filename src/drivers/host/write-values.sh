#!/bin/sh
# Writes values to a kernel file, one after another, and goes on when the kernel refuses one.
# Usage: write-values.sh <file> <value>...
file=$1
shift
for value; do printf %s "$value" > "$file" || true; done
