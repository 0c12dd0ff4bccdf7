# The rest is the same for every run: on each node, with what SkyPilot says of it in SKYPILOT_*. Ray is started on all,
# waited for, and PAYLOAD runs on the first; when it ends, Ray ends, and with it what the other nodes wait in.
#
# SkyPilot has a Ray of its own on the node: ours is ended by its process and never by `ray stop`.
set -euo pipefail

say() { printf 'skypilot: %s\n' "$*" >&2; }
give_up() { local code=$1; shift; say "$*"; exit "$code"; }

# An IPv6 address goes into brackets where a port follows.
with_port() { if [[ $1 == *:* ]]; then printf '[%s]:%s\n' "$1" "$2"; else printf '%s:%s\n' "$1" "$2"; fi; }

# Whoever reaches a head can run code in it, and the dashboard is exposed: the run has a token, the same on all nodes.
[[ -n ${RAY_AUTH_TOKEN-} ]] ||
    give_up 78 "RAY_AUTH_TOKEN is not set: export it, say as \$(openssl rand -hex 32), and launch with --secret RAY_AUTH_TOKEN"
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN AGENTIC_WORKSPACE=$WORKSPACE
mkdir -p "$WORKSPACE/runs/$RUN_ID"
(umask 077 && printf '%s' "$RAY_AUTH_TOKEN" >"$WORKSPACE/runs/$RUN_ID/ray.token.$SKYPILOT_NODE_RANK")
mv "$WORKSPACE/runs/$RUN_ID/ray.token.$SKYPILOT_NODE_RANK" "$WORKSPACE/runs/$RUN_ID/ray.token"

mapfile -t nodes <<<"$SKYPILOT_NODE_IPS"
((${#nodes[@]} == SKYPILOT_NUM_NODES)) ||
    give_up 78 "SKYPILOT_NODE_IPS names ${#nodes[@]} nodes but SKYPILOT_NUM_NODES is $SKYPILOT_NUM_NODES"
head=${nodes[0]} own=${nodes[$SKYPILOT_NODE_RANK]}
AGENTIC_RAY_ADDRESS=$(with_port "$head" "$RAY_PORT")
export AGENTIC_RAY_ADDRESS VLLM_HOST_IP=$own
# Ray adds 15 to its workers' niceness; beside any other process they then starve. A node that is told to end has
# nothing to hand over, and would wait 30 s for it.
export RAY_worker_niceness=0 RAY_USAGE_STATS_ENABLED=0 RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S=0

ray=(python3 -m ray.scripts.scripts start --block --disable-usage-stats --node-ip-address="$own"
    --num-cpus="$RAY_CPUS" --num-gpus="$RAY_GPUS" --object-store-memory="$OBJECT_STORE_BYTES")
if ((SKYPILOT_NUM_GPUS_PER_NODE > 0 && SKYPILOT_NUM_GPUS_PER_NODE != RAY_GPUS)); then
    give_up 78 "the node has $SKYPILOT_NUM_GPUS_PER_NODE GPUs but train.gpus_per_node is $RAY_GPUS: set both to the same"
fi

# Short, since sockets below it may have paths of 107 bytes at most, and a run's id is longer than a port.
SESSIONS=/tmp/agentic-ray-$RAY_PORT

RAY_PID='' PAYLOAD_PID=''
is_alive() { [[ -n $1 ]] && kill -0 "$1" 2>/dev/null; }
end() { # PID SECONDS
    local waited
    is_alive "$1" || return 0
    kill -TERM "$1" 2>/dev/null || true
    for ((waited = 0; waited < $2; waited++)); do
        is_alive "$1" || return 0
        sleep 1
    done
    kill -KILL "$1" 2>/dev/null || true
}
# Ray that is ended in the middle of a start leaves some of its processes, and all carry this.
RAY_MARK="$RUN_ID $SKYPILOT_NODE_RANK"
tidy() {
    local entry is_clear try
    for ((try = 0; try < 50; try++)); do
        is_clear=yes
        for entry in /proc/[0-9]*; do
            if grep -qszx "AGENTIC_RAY_OF_NODE=$RAY_MARK" "$entry/environ" 2>/dev/null; then
                is_clear=no
                kill -KILL "${entry#/proc/}" 2>/dev/null || true
            fi
        done
        if [[ $is_clear == yes ]]; then return; fi
        sleep 0.1
    done
    say "some of Ray's processes did not end on node $SKYPILOT_NODE_RANK"
}
finish() {
    local code=$?
    trap '' EXIT TERM INT
    set +e
    end "$PAYLOAD_PID" 90
    # The payload leads a group of its own, of which nothing stays.
    [[ -z $PAYLOAD_PID ]] || kill -KILL -- "-$PAYLOAD_PID" 2>/dev/null
    end "$RAY_PID" 30
    tidy
    rm -rf "$SESSIONS"
    say "node $SKYPILOT_NODE_RANK of run $RUN_ID ends with exit code $code"
    exit "$code"
}
trap finish EXIT

# A signal between a start and the note of it would find nobody to end: it is put off until both are done.
HEARD=''
put_off_signals() { trap 'HEARD=TERM' TERM INT; }
hear_signals() {
    trap 'exit 143' TERM INT
    if [[ -n $HEARD ]]; then kill -s "$HEARD" $$; fi
}
hear_signals
start() {
    put_off_signals
    setsid "$@" &
    PAYLOAD_PID=$!
    hear_signals
}
start_ray() {
    put_off_signals
    AGENTIC_RAY_OF_NODE=$RAY_MARK started "${ray[@]}" "$@" &
    RAY_PID=$!
    hear_signals
}

# Signals are heard while bash waits, not while it runs something in the foreground.
attended() {
    local code=0
    start "$@"
    wait "$PAYLOAD_PID" || code=$?
    PAYLOAD_PID=''
    return "$code"
}

# Ray gives its own processes 15 and 30 s to start, which a node that is busy, or imports from a file server, can miss. It
# is started again as long as nodes are waited for; one that is lost later is not made up for.
started() {
    local try code pid='' patience=$((JOIN_POLLS * ${JOIN_POLL_SECONDS%.*}))
    trap 'if [[ -n $pid ]]; then kill -TERM "$pid" || true; wait "$pid" || true; fi; exit 143' TERM
    for try in 1 2 3; do
        code=0
        "$@" &
        pid=$!
        wait "$pid" || code=$?
        say "Ray has ended on node $SKYPILOT_NODE_RANK with exit code $code, try $try of 3"
        if ((SECONDS > patience)); then break; fi
    done
    exit "$code"
}

# A host that is gone refuses nothing: it is silent.
# shellcheck disable=SC2016 # the inner shell's own
answers() { timeout 5 bash -c 'exec 3<>"/dev/tcp/$0/$1"' "$head" "$RAY_PORT" 2>/dev/null; }

# The head ends Ray last, so the other nodes are done when it no longer answers. One that starts Ray again is silent for
# a while, too.
follow_head() {
    local missed=0
    while ((missed < 15)); do
        attended sleep 2
        if answers; then
            missed=0
            is_alive "$RAY_PID" || give_up 75 "Ray on this node has ended before its head"
        else
            missed=$((missed + 1))
        fi
    done
}

if ((SKYPILOT_NODE_RANK > 0)); then
    for ((poll = 1; ; poll++)); do
        if answers; then break; fi
        ((poll < JOIN_POLLS)) || give_up 75 "Ray's head has not answered at $AGENTIC_RAY_ADDRESS"
        attended sleep "$JOIN_POLL_SECONDS"
    done
    start_ray --address="$AGENTIC_RAY_ADDRESS"
    follow_head
    exit 0
fi

if answers; then give_up 75 "something answers at $AGENTIC_RAY_ADDRESS already: set skypilot.ray_port"; fi
start_ray --head --port="$RAY_PORT" --dashboard-host=0.0.0.0 --dashboard-port="$DASHBOARD_PORT" --temp-dir="$SESSIONS"
until answers; do
    is_alive "$RAY_PID" || give_up 75 "Ray's head has not started: see above"
    attended sleep 1
done
attended python3 -m agentic.training.ray_nodes --address "$AGENTIC_RAY_ADDRESS" --nodes "$SKYPILOT_NUM_NODES" \
    --polls "$JOIN_POLLS" --poll-seconds "$JOIN_POLL_SECONDS"
start "${PAYLOAD[@]}"
wait -n "$PAYLOAD_PID" "$RAY_PID" || true
if is_alive "$PAYLOAD_PID" && ! is_alive "$RAY_PID"; then give_up 75 "Ray's head was lost while the run went on"; fi
wait "$PAYLOAD_PID"
