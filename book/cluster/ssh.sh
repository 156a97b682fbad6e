#!/usr/bin/env bash
# A Dask cluster of machines that you reach with ssh, for as long as one command runs.
#
#   HOSTS="node1:8 node2:16" ADDRESS=10.0.0.5 bash ssh.sh sptlib sweep synthetic --store /shared/store
#
# starts a scheduler here, 8 workers on node1 and 16 on node2, runs the command with
# "--scheduler tcp://10.0.0.5:8786" added to it, and ends everything with it.
#
#   HOSTS     machines, each with its number of workers (1 if you leave it out)
#   ADDRESS   of this machine in the network that the machines share
#   PORT      of the scheduler (8786)
#   BIN       folder of `dask` on the machines (the one where it is found here)
#   TLS       folder with ca.pem, cert.pem and key.pem, under the same path everywhere (none)
#   LOGS      folder for the output of scheduler and workers (cluster-logs)
#   SSH       the ssh command, with its options (ssh)
set -euo pipefail

: "${HOSTS:?names the machines, e.g. HOSTS=\"node1:8 node2:16\"}"
: "${ADDRESS:?is the address of this machine that the others reach}"
PORT=${PORT:-8786} LOGS=${LOGS:-cluster-logs} SSH=${SSH:-ssh}
BIN=${BIN:-$(dirname "$(command -v dask)")}
# as little as possible that answers from elsewhere: see "Who can reach it" on the page
QUIET="--no-dashboard --dashboard-address 127.0.0.1:0"
# how often a training may lose its worker before it is given up; Dask itself says 3
export DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES=20

protocol=tcp files="" options=()
if [ -n "${TLS:-}" ]; then
  protocol=tls
  files="--tls-ca-file $TLS/ca.pem --tls-cert $TLS/cert.pem --tls-key $TLS/key.pem"
  options=(--tls-ca "$TLS/ca.pem" --tls-cert "$TLS/cert.pem" --tls-key "$TLS/key.pem")
fi
scheduler=$protocol://$ADDRESS:$PORT

mkdir -p "$LOGS"
set -m # what is started with & does not hear Ctrl-C: only the command does, which needs the rest
# shellcheck disable=SC2086  # several words are meant
dask scheduler --protocol $protocol --host "$ADDRESS" --port "$PORT" $QUIET $files \
  > "$LOGS/scheduler.log" 2>&1 &
pid=$!
# workers end by themselves when their scheduler has gone, so this ends all
trap 'kill $pid 2> /dev/null || true; wait' EXIT
sleep 3
kill -0 $pid 2> /dev/null || { tail -n 3 "$LOGS/scheduler.log" >&2; exit 1; }

for each in $HOSTS; do
  host=${each%%:*} n=1
  [ "$host" = "$each" ] || n=${each##*:}
  # Dask sets MALLOC_TRIM_THRESHOLD_, which costs a training a fifth of its speed; None unsets it
  start="DASK_DISTRIBUTED__NANNY__PRE_SPAWN_ENVIRON=\"{'MALLOC_TRIM_THRESHOLD_': None}\" \
    exec $BIN/dask worker $scheduler --nthreads 1 --nworkers $n --death-timeout 60 $QUIET $files"
  # again after 10 seconds if the machine was restarted or the connection broke
  while kill -0 $pid 2> /dev/null; do
    echo "$(date) starting $n workers on $host"
    $SSH -n -o BatchMode=yes -o ServerAliveInterval=15 "$host" "$start" || true
    kill -0 $pid 2> /dev/null && sleep 10
  done > "$LOGS/$host.log" 2>&1 &
done
set +m

trap : INT # the command decides what Ctrl-C means; all the rest ends after it
status=0
"$@" --scheduler "$scheduler" "${options[@]}" || status=$?
exit $status
