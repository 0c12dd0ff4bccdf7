# The rest is the same for every run: start Ray on all nodes, wait for them, run PAYLOAD on the first, leave nothing.
#
# Exit codes: that of PAYLOAD (0 done, 75 trying again may help, 78 it cannot), 143 when Slurm ends the job. With 75, and
# when the time is nearly over, the job puts itself back into the queue, RESTARTS times at most; the run's folder says
# what is done, so the next start goes on. A preempted job is put back by Slurm itself, as --requeue allows.
set -euo pipefail

say() { printf 'slurm: %s\n' "$*" >&2; }
give_up() { local code=$1; shift; say "$*"; exit "$code"; }

# Prints an address of this node: on INTERFACE, if one is chosen; else the one from which PEER is reached, if given; else
# the first that the host's name stands for. IPv4 comes before IPv6; loopback and link-local ones are none.
own_address() { # [PEER]
    local found='' sixth='' candidate
    if [[ -n $INTERFACE ]]; then
        found=$(ip -4 -o addr show dev "$INTERFACE" 2>/dev/null | awk 'NR == 1 { print $4 }') || true
        [[ -n $found ]] || found=$(ip -6 -o addr show dev "$INTERFACE" scope global 2>/dev/null | awk 'NR == 1 { print $4 }') || true
        [[ -n $found ]] || give_up 78 "interface $INTERFACE has no address on $(hostname): there are" \
            "$(ip -o addr 2>/dev/null | awk '{ print $2 " " $4 }' | paste -sd, -); set slurm.interface or RAY_NETWORK_INTERFACE"
        printf '%s\n' "${found%%/*}"
        return
    fi
    if [[ -n ${1-} ]]; then
        found=$(ip -o route get "$1" 2>/dev/null | sed -n 's/.* src \([^ ]*\).*/\1/p') || true
        if [[ -n $found ]]; then printf '%s\n' "$found"; return; fi
    fi
    for candidate in $(hostname --ip-address 2>/dev/null) $(hostname --all-ip-addresses 2>/dev/null); do
        case $candidate in
            127.* | ::1 | fe80:*) ;;
            *:*) sixth=${sixth:-$candidate} ;;
            *) printf '%s\n' "$candidate"; return ;;
        esac
    done
    [[ -n $sixth ]] || give_up 78 "$(hostname) has no address but loopback: set slurm.interface or RAY_NETWORK_INTERFACE"
    printf '%s\n' "$sixth"
}

interface_of() { ip -o addr 2>/dev/null | awk -v address="$1" '{ split($4, part, "/") } part[1] == address { print $2; exit }'; }

# An IPv6 address goes into brackets where a port follows.
with_port() { if [[ $1 == *:* ]]; then printf '[%s]:%s\n' "$1" "$2"; else printf '%s:%s\n' "$1" "$2"; fi; }

# Whether this node can run what the job is to run.
check_node() {
    if ((${#IN_IMAGE[@]})); then
        command -v "${IN_IMAGE[0]}" >/dev/null || give_up 78 "there is no ${IN_IMAGE[0]} on $(hostname): load its module" \
            "by slurm.setup, or leave slurm.image out"
    else
        command -v "${PYTHON[0]}" >/dev/null || give_up 78 "there is no ${PYTHON[0]} on $(hostname): run make setup in a" \
            "folder that all nodes see, or set slurm.python"
    fi
}

# Ray on this node, in the foreground: it ends with the step that it is.
ray_node() { # [HEAD-ADDRESS]
    local address device
    prepare_node
    check_node
    address=$(own_address "${1-}")
    device=$(interface_of "$address")
    if ((${#DATA_INTERFACES[@]})); then device=$(IFS=,; printf '%s' "${DATA_INTERFACES[*]}"); fi
    # NCCL and gloo would each choose for themselves, and on a node with several networks not the same one.
    if [[ -n $device ]]; then export NCCL_SOCKET_IFNAME=$device GLOO_SOCKET_IFNAME=$device TP_SOCKET_IFNAME=$device; fi
    # Ray adds 15 to its workers' niceness; beside any other process they then starve. A node that is told to end has
    # nothing to hand over, and would wait 30 s for it.
    export AGENTIC_RAY_OF_JOB=$SLURM_JOB_ID VLLM_HOST_IP=$address RAY_worker_niceness=0 RAY_USAGE_STATS_ENABLED=0 RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S=0
    local ray=("${IN_IMAGE[@]}" "${PYTHON[@]}" -m ray.scripts.scripts start --block --disable-usage-stats
        --node-ip-address="$address" --num-cpus="$RAY_CPUS" --num-gpus="$RAY_GPUS"
        --object-store-memory="$OBJECT_STORE_BYTES")
    say "$(hostname) has address $address on ${device:-no interface that ip knows}"
    if [[ -n ${1-} ]]; then
        sleep "$((SLURM_PROCID * WORKER_PAUSE_SECONDS))"
        ray+=(--address="$(with_port "$1" "$RAY_PORT")")
    else
        ray+=(--head --port="$RAY_PORT" --temp-dir="$SESSIONS" --include-dashboard=false)
        if [[ -n $DASHBOARD_PORT ]]; then
            ray+=(--include-dashboard=true --dashboard-host=127.0.0.1 --dashboard-port="$DASHBOARD_PORT")
        fi
    fi
    started "${ray[@]}"
}

# Ray gives its own processes 15 and 30 s to start, which a node that is busy, or imports from a file server, can miss. It
# is started again as long as nodes are waited for; one that is lost later is not made up for.
started() {
    local try code patience=$((JOIN_POLLS * ${JOIN_POLL_SECONDS%.*}))
    trap 'exit 143' TERM
    for try in 1 2 3; do
        code=0
        "$@" || code=$?
        say "Ray has ended on $(hostname) with exit code $code, try $try of 3"
        if ((SECONDS > patience)); then break; fi
    done
    exit "$code"
}

# Ray's files on each node; short, since sockets below it may have paths of 107 bytes at most.
SESSIONS=/tmp/ray-$SLURM_JOB_ID

answers() { (exec 4<>"/dev/tcp/$1/$RAY_PORT") 2>/dev/null; }

# A signal between a start and the note of it would find nobody to end: it is put off until both are done.
HEARD=''
put_off_signals() {
    trap 'HEARD=TERM' TERM INT
    trap 'HEARD=USR1' USR1
}
hear_signals() {
    trap 'say "Slurm ends the job"; exit 143' TERM INT
    trap 'say "the time is nearly over, or the job is preempted"; exit 75' USR1
    if [[ -n $HEARD ]]; then kill -s "$HEARD" $$; fi
}

# A step of this job on some of its nodes, one task on each; its process is the last of STEPS.
STEPS=()
on_nodes() { # NODES COUNT [HEAD-ADDRESS]
    put_off_signals
    srun --overlap --nodes="$2" --ntasks="$2" --ntasks-per-node=1 --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" \
        --nodelist="$1" --job-name=ray \
        bash -c "$ON_NODE; ray_node ${3-}" &
    STEPS+=("$!")
    hear_signals
}

# In a session of its own, so that it is told to end once, by finish, and not by Slurm as well.
PAYLOAD_PID=''
start() {
    put_off_signals
    setsid "$@" &
    PAYLOAD_PID=$!
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

is_alive() { kill -0 "$1" 2>/dev/null; }

await_end() { # PID SECONDS
    local waited
    for ((waited = 0; waited < $2; waited++)); do
        is_alive "$1" || return 0
        sleep 1
    done
    ! is_alive "$1"
}

# The payload leads a group of its own, of which nothing stays.
end_payload() {
    [[ -n $PAYLOAD_PID ]] || return 0
    kill -TERM "$PAYLOAD_PID" 2>/dev/null && { await_end "$PAYLOAD_PID" 90 || true; }
    kill -KILL -- "-$PAYLOAD_PID" 2>/dev/null || true
}

# Asked first, by Slurm, on every node: Ray's own processes then end each other. A step that had not started when it was
# asked did not hear it, so it is asked again. What is left is killed with its step.
end_ray() {
    local step waited
    ((${#STEPS[@]})) || return 0
    for ((waited = 0; waited < 20; waited++)); do
        for step in "${STEPS[@]}"; do is_alive "$step" && break; done || break
        if ((waited % 4 == 0)); then scancel --signal=TERM "$SLURM_JOB_ID" 2>/dev/null || true; fi
        sleep 1
    done
    for step in "${STEPS[@]}"; do kill -TERM "$step" 2>/dev/null || true; done
    for step in "${STEPS[@]}"; do await_end "$step" 15 || kill -KILL "$step" 2>/dev/null || true; done
    timeout 15 srun --overlap --nodes="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --job-name=tidy \
        bash -c "SESSIONS=$SESSIONS; $(declare -f tidy); tidy" 2>/dev/null || tidy
}

# A start that failed may have left agents behind, which Slurm loses sight of where it tracks processes by their parents.
tidy() {
    local entry
    for entry in /proc/[0-9]*; do
        if grep -qszx "AGENTIC_RAY_OF_JOB=$SLURM_JOB_ID" "$entry/environ"; then kill -KILL "${entry#/proc/}" || true; fi
    done
    rm -rf "$SESSIONS"
}

# Ray's steps may hear that a job is cancelled before this script does: a lost node then, and no reason to come back.
is_ended_by_slurm() {
    local state
    state=$(scontrol show job --oneliner "$SLURM_JOB_ID" 2>/dev/null | sed -n 's/.*JobState=\([A-Z_]*\).*/\1/p')
    [[ $state == @(COMPLETING|CANCELLED|TIMEOUT|PREEMPTED|DEADLINE) ]]
}

finish() {
    local code=$? done_before=${SLURM_RESTART_COUNT:-0}
    trap '' EXIT TERM INT USR1
    set +e
    end_payload
    end_ray
    if ((code == 75)) && is_ended_by_slurm; then
        say "Slurm has ended the job meanwhile"
        code=143
    fi
    if ((code == 75 && done_before < RESTARTS)); then
        say "run $RUN_ID goes back into the queue, start $((done_before + 1)) of at most $((RESTARTS + 1)) is over"
    elif ((code == 75 && RESTARTS)); then
        say "run $RUN_ID has been started $((RESTARTS + 1)) times: submit it again to go on, or raise slurm.restarts"
    else
        say "run $RUN_ID ends with exit code $code"
    fi
    exec >&3 2>&3
    await_end "$TEE_PID" 5
    if ((code == 75 && done_before < RESTARTS)); then scontrol requeue "$SLURM_JOB_ID"; fi
    exit "$code"
}

main() {
    local logs=$WORKSPACE/runs/$RUN_ID/logs nodes head others=''
    mkdir -p "$logs"
    exec 3>&1
    exec > >(trap '' TERM INT USR1; exec tee -a "$logs/$LOG_NAME" >&3) 2>&1
    TEE_PID=$!
    trap finish EXIT
    hear_signals
    cd "$PROJECT"
    prepare_node
    check_node

    export AGENTIC_WORKSPACE=$WORKSPACE RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$WORKSPACE/runs/$RUN_ID/ray.token
    # Whoever reaches a head can run code in it, so the run has a token.
    if [[ ! -s $RAY_AUTH_TOKEN_PATH ]]; then
        (umask 077 && od -An -N32 -tx1 /dev/urandom | tr -d ' \n' >"$RAY_AUTH_TOKEN_PATH")
    fi
    mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
    head=$(own_address)
    AGENTIC_RAY_ADDRESS=$(with_port "$head" "$RAY_PORT")
    export AGENTIC_RAY_ADDRESS
    say "run $RUN_ID, start $((${SLURM_RESTART_COUNT:-0} + 1)), on ${nodes[*]}; Ray's head is $AGENTIC_RAY_ADDRESS"

    # Another job's head on a shared node; ours could not start, and the wait for it would end at once.
    if answers "$head"; then give_up 75 "something answers at $AGENTIC_RAY_ADDRESS already: set slurm.ray_port"; fi
    on_nodes "${nodes[0]}" 1
    until answers "$head"; do
        is_alive "${STEPS[0]}" || give_up 75 "Ray's head has not started: see above"
        attended sleep 1
    done
    if ((${#nodes[@]} > 1)); then
        others=$(IFS=,; printf '%s' "${nodes[*]:1}")
        on_nodes "$others" "$((${#nodes[@]} - 1))" "$head"
    fi
    attended "${IN_IMAGE[@]}" "${PYTHON[@]}" -m agentic.training.ray_nodes --address "$AGENTIC_RAY_ADDRESS" \
        --nodes "${#nodes[@]}" --polls "$JOIN_POLLS" --poll-seconds "$JOIN_POLL_SECONDS"
    run_payload
}

# A script that is killed ends nothing, and where Slurm tracks processes by their parents it loses sight of the payload.
watch_over_payload() {
    # shellcheck disable=SC2016 # the inner shell's own
    setsid bash -c 'trap "" TERM INT USR1; while kill -0 "$0" && kill -0 "$1"; do sleep 2; done; kill -KILL -- "-$1"' \
        $$ "$PAYLOAD_PID" </dev/null >/dev/null 2>&1 3>&- &
}

run_payload() {
    local step
    start "${IN_IMAGE[@]}" "${PAYLOAD[@]}"
    watch_over_payload
    wait -n "$PAYLOAD_PID" "${STEPS[@]}" || true
    if is_alive "$PAYLOAD_PID"; then
        for step in "${STEPS[@]}"; do
            is_alive "$step" || give_up 75 "a Ray node was lost while the run went on"
        done
    fi
    wait "$PAYLOAD_PID"
}

# What a task on another node needs of this script.
ON_NODE="set -euo pipefail
$(declare -p INTERFACE DATA_INTERFACES IN_IMAGE PYTHON RAY_CPUS RAY_GPUS OBJECT_STORE_BYTES RAY_PORT DASHBOARD_PORT WORKER_PAUSE_SECONDS SESSIONS \
    JOIN_POLLS JOIN_POLL_SECONDS)
$(declare -f say give_up prepare_node check_node own_address interface_of with_port ray_node started)"
readonly ON_NODE

main
