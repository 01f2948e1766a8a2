#!/usr/bin/env bash
# Checks the CUDA backend's ops on the GPU at hand, with the CUDA toolkit and gcc alone: no other
# library, no network. What it builds stays in $CHECK_BUILD (build/cuda/check) until a source changes.
#   kernels/cuda/check.sh                every op against the CPU backend, and its identity; a fault
#   kernels/cuda/check.sh sanitize       the same at cut shapes under compute-sanitizer's four tools
#   kernels/cuda/check.sh bench          microseconds of every op beside its floor
#   kernels/cuda/check.sh compare FLAGS  the same beside those of a module built with further flags of nvcc, kept
#                                        in build/cuda/variant, which is checked first
#   kernels/cuda/check.sh [PART] --only OP --seed S ...   passes options on to check_ops
# CHECK_MODULE=libhearth_cuda.so takes a module that was built elsewhere; CHECK_TOOLS and CHECK_OPS name other
# sanitizer tools and ops than all, CHECK_SECONDS another limit for each (150); CHECK_FLAGS are further flags
# of nvcc (with a CHECK_BUILD of their own).
set -euo pipefail
cd "$(dirname "$0")/../.."
PATH=$PATH:/usr/local/cuda/bin

part=check
case "${1:-}" in
check | sanitize | bench)
    part=$1
    shift
    ;;
compare)
    part=$1
    flags=$2
    shift 2
    ;;
esac
build=${CHECK_BUILD:-build/cuda/check}
program=$build/check_ops
mkdir -p "$build"

# One line a file: the command that compiles it. What takes longest comes first.
commands() {
    local c="gcc -std=c17 -D_GNU_SOURCE -O2 -g1 -fPIC -fvisibility=hidden -ffp-contract=off"
    c+=" -fno-strict-aliasing -I. -Ikernels -Ikernels/cpu -DKERNELS_HAVE_CUDA"
    local architecture nvcc source
    architecture=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -1 | tr -d .)
    [ "$architecture" != 90 ] || architecture=90a
    nvcc="nvcc -std=c++17 -O2 -lineinfo -I. -Xcompiler -fPIC,-fvisibility=hidden"
    nvcc+=" ${CHECK_FLAGS:-}"
    nvcc+=" -gencode arch=compute_$architecture,code=sm_$architecture"
    for source in kernels/cuda/check/*.cu; do
        echo "$nvcc -c $source -o $build/$(basename "$source").o"
    done
    if [ -z "${CHECK_MODULE:-}" ]; then
        for source in kernels/cuda/*.cu; do
            echo "$nvcc -c $source -o $build/module_$(basename "$source").o"
        done
        for source in base/result.c kernels/cpu/cpu_team.c; do # the module's own copies
            echo "$c -c $source -o $build/module_$(basename "$source").o"
        done
    fi
    local lanes options
    for lanes in avx512 avx2 plain; do
        [ "$(uname -m)" = x86_64 ] || [ $lanes = plain ] || continue
        options="-O3 -DCPU_LANES=$lanes -DCPU_LANES_${lanes^^}"
        [ $lanes = plain ] || options+=" -mavx2 -mfma -mf16c"
        [ $lanes != avx512 ] || options+=" -mavx512f -mavx512bw -mavx512dq -mavx512vl"
        [ $lanes != avx512 ] || options+=" -mprefer-vector-width=512"
        for source in product attention indexer linear math moe record stream table; do
            echo "$c $options -c kernels/cpu/cpu_$source.c -o $build/${lanes}_$source.o"
        done
    done
    [ "$(uname -m)" != x86_64 ] || c+=" -DCPU_HAVE_X86"
    for source in kernels/*.c kernels/cpu/cpu_{backend,team,topk}.c kernels/cuda/check/*.c \
        base/bytes.c base/clock.c base/log.c base/result.c base/sha256.c; do
        echo "$c -c $source -o $build/$(basename "$source").o"
    done
}

is_built() {
    [ -e "$build/stamp" ] && [ "$(cat "$build/stamp")" = "${CHECK_MODULE:-}" ] &&
        [ -z "$(find kernels base ${CHECK_MODULE:+"$CHECK_MODULE"} -newer "$build/stamp" -print -quit)" ]
}

build() {
    local began=$SECONDS
    rm -rf "${build:?}"/*
    commands | xargs -P "$(nproc)" -d '\n' -n 1 bash -c 'eval "$0" || { echo "failed: $0"; exit 255; }'
    if [ -z "${CHECK_MODULE:-}" ]; then
        nvcc -shared -cudart static -o "$build/libhearth_cuda.so" "$build"/module_*.o \
            -Xlinker --exclude-libs,ALL -Xlinker -z,defs -lpthread -ldl
        rm "$build"/module_*.o
    else
        cp "$CHECK_MODULE" "$build/libhearth_cuda.so"
    fi
    nvcc -cudart static -o "$program" "$build"/*.o -Xlinker -rpath='$ORIGIN' -lm -lpthread -ldl
    echo "${CHECK_MODULE:-}" >"$build/stamp"
    echo "built in $((SECONDS - began)) s"
}

# One tool over one op: a line, and what went wrong.
sanitize_one() {
    local tool=$1 op=$2 log code=0
    shift 2
    log=$build/$tool.$op.log
    timeout "${CHECK_SECONDS:-150}" compute-sanitizer --tool "$tool" --error-exitcode 9 \
        "$program" --emulated --only "$op" "$@" >"$log" 2>&1 || code=$?
    case $code in
    0) echo "ok: $tool, $op: $(grep -E 'checks, .* failed' "$log" | tail -1)" ;;
    124) echo "FAILED: $tool, $op ran past its limit, after: $(grep -E '^(ok|FAILED)' "$log" | tail -1)" ;;
    *) echo "FAILED: $tool, $op (status $code)" && grep -E '^(FAILED|=========)' "$log" | head -20 ;;
    esac
    return $code
}

# Racecheck takes minutes for one op, so tools and ops run side by side.
sanitize() {
    local tool op status=0
    export -f sanitize_one
    export build program
    # the slow ones first
    for tool in ${CHECK_TOOLS:-racecheck memcheck initcheck synccheck}; do
        for op in ${CHECK_OPS:-linear experts attention index_select stream_mix compress_pool entry_store \
            embed stream_collapse stream_update norm quantize rope_table rotate window_pack \
            window_commit index_quantize route engram_gather engram_gate keep_rows machine}; do
            echo "$tool $op${*:+ $*}" # no blank at the end: xargs would join it to the next line
        done
    done | xargs -P "$(nproc)" -L 1 bash -c 'sanitize_one "$@"' _ || status=1
    return $status
}

# Two columns of microseconds for each op and shape: this module's, and the variant's.
compare() {
    local variant=build/cuda/variant
    CHECK_MODULE='' CHECK_FLAGS=$flags CHECK_BUILD=$variant kernels/cuda/check.sh >"$variant.check.log" 2>&1 ||
        { grep -E '^FAILED|error' "$variant.check.log" | head -20 && return 1; }
    grep -E 'checks, .* failed' "$variant.check.log"
    "$program" --bench "$@" >"$build/bench.log"
    "$variant/check_ops" --bench "$@" >"$variant.bench.log"
    awk '$1 == "bench" {
            for (us = 2; us < NF && $us != "us"; us++) {}
            name = $2
            for (i = 3; i < us - 1; i++) { name = name " " $i }
            if (NR == FNR) { own[name] = $(us - 1); floor[name] = $(us + 2); next }
            printf "%-52s %9.2f %9.2f  floor %8.2f\n", name, own[name], $(us - 1), floor[name]
        }' "$build/bench.log" "$variant.bench.log"
}

is_built || build
case $part in
check)
    status=0
    "$program" "$@" || status=1
    "$program" --fault || status=1
    exit $status
    ;;
sanitize) sanitize "$@" ;;
bench) "$program" --bench "$@" ;;
compare) compare "$@" ;;
esac
