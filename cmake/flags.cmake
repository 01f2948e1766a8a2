# One interface target carries warnings, hardening and sanitizers; every target links it.
add_library(hearth_flags INTERFACE)
target_include_directories(hearth_flags INTERFACE ${PROJECT_SOURCE_DIR}) # "engine/chat.h"

set(common_warnings
    -Wall -Wextra -Wpedantic -Werror -Wshadow -Wconversion -Wsign-conversion -Wstrict-prototypes
    -Wmissing-prototypes -Wold-style-definition -Wpointer-arith -Wcast-qual -Wwrite-strings
    -Wformat=2 -Wundef -Wvla -Walloca -Wswitch-enum -Wnull-dereference -Wdouble-promotion)
if(CMAKE_C_COMPILER_ID STREQUAL "GNU")
    list(APPEND common_warnings
        -Wcast-align=strict -Wimplicit-fallthrough=5 -Wlogical-op -Wduplicated-cond
        -Wduplicated-branches)
endif()

# No fused or re-associated floating point that the source does not spell out: results must not
# depend on the compiler's mood (promise P2).
target_compile_options(hearth_flags INTERFACE
    $<$<COMPILE_LANGUAGE:C>:${common_warnings} -fno-common -fvisibility=hidden -fPIE
    -ffp-contract=off -fno-strict-aliasing
    $<$<C_COMPILER_ID:GNU>:-ftrivial-auto-var-init=zero>>)
target_compile_definitions(hearth_flags INTERFACE _GNU_SOURCE)

if(HEARTH_FUZZ) # coverage of everything that a fuzz target links
    target_compile_options(hearth_flags INTERFACE $<$<COMPILE_LANGUAGE:C>:-fsanitize=fuzzer-no-link>)
endif()
if(HEARTH_SANITIZE)
    target_compile_options(hearth_flags INTERFACE $<$<COMPILE_LANGUAGE:C>:-fsanitize=${HEARTH_SANITIZE}
        -fno-sanitize-recover=all -fno-omit-frame-pointer>)
    target_link_options(hearth_flags INTERFACE -fsanitize=${HEARTH_SANITIZE})
elseif(CMAKE_BUILD_TYPE STREQUAL "Release")
    target_compile_options(hearth_flags INTERFACE $<$<COMPILE_LANGUAGE:C>:-U_FORTIFY_SOURCE
        -D_FORTIFY_SOURCE=3 -fstack-protector-strong -fstack-clash-protection -fcf-protection>)
endif()
target_link_options(hearth_flags INTERFACE -pie -Wl,-z,relro,-z,now,-z,noexecstack)

# Asserts stay on in release (style.md 28), so NDEBUG is not defined by CMake's own flags.
set(CMAKE_C_FLAGS_RELEASE "-O2 -g1 -DNDEBUG_HOT")
set(CMAKE_C_FLAGS_DEBUG "-O1 -g")
