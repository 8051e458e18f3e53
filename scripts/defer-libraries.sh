#!/usr/bin/env bash
# Has the CRIU in PREFIX load GnuTLS and nftables when it first calls them, instead of at every start: with what they
# need they are 12 of its 20 libraries, and nothing of what the platform asks of CRIU calls them but its probe of the
# kernel. In the place of each is a library of the same name whose functions load the real one. CRIU itself stays as it
# is. Idempotent. Needs a C compiler; without one it changes nothing, and says so.
# usage: defer-libraries.sh PREFIX
set -euo pipefail

prefix=${1:?usage: defer-libraries.sh PREFIX}
say() { echo "criu: $*"; }

todo=()
for soname in $(patchelf --print-needed "$prefix/criu" | grep -E '^lib(gnutls|nftables)\.so\.' || true); do
    [ -e "$prefix/lib/deferred-$soname" ] || todo+=("$soname")
done
[ ${#todo[@]} -gt 0 ] || exit 0
compiler=$(command -v cc || command -v gcc || true)
if [ -z "$compiler" ] || ! command -v readelf > /dev/null || [ "$(uname -m)" != x86_64 ]; then
    say "starts with all its libraries: no C compiler with binutils for x86-64 is here"
    exit 0
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/lib"
made=()

# imports KIND: the symbols of $version that CRIU has: functions that it calls, or data of which it has a copy.
imports() {
    readelf --dyn-syms --wide "$prefix/criu" | awk -v kind="$1" -v version="$version" '
        { split($8, part, "@") }
        part[2] == version && ($7 == "UND" ? "functions" : "data") == kind { print part[1] }'
}

for soname in "${todo[@]}"; do
    # "Version: 1  File: libgnutls.so.30  Cnt: 1", and below it each version's name.
    versions=$(readelf --version-info --wide "$prefix/criu" | awk -v file="$soname" '
        /File:/ { of = ($5 == file || $6 == file) }
        /Name:/ && of { print $3 }')
    if [ "$(wc -w <<< "$versions")" != 1 ]; then
        say "starts with $soname: it asks for versions that are not known here: $versions"
        continue
    fi
    version=$versions
    functions=$(imports functions)
    data=$(imports data)
    exports=$(readelf --dyn-syms --wide "$prefix/lib/$soname" |
        awk '$7 != "UND" { sub("@.*", "", $8); print $8 }' | sort -u)
    unknown=$(comm -23 <(sort -u <<< "$functions") - <<< "$exports")
    if [ -n "$unknown" ]; then
        say "starts with $soname: it does not have $unknown"
        continue
    fi
    # Its value is that of the library's own: memory is freed as any.
    if [ -n "$data" ] && [ "$data" != gnutls_free ]; then
        say "starts with $soname: it has a copy of its data: $data"
        continue
    fi
    {
        echo '#include <dlfcn.h>'
        echo '#include <stdio.h>'
        echo '#include <stdlib.h>'
        [ -z "$data" ] || echo 'void (*gnutls_free)(void *) = free;'
        echo '__attribute__((visibility("hidden"))) extern void *deferred_slots[];'
        echo 'static const char *const names[] = {'
        for name in $functions; do echo "    \"$name\","; done
        echo '};'
        cat << EOF
__attribute__((visibility("hidden"))) void *deferred_find(unsigned long number)
{
    static void *library;
    /* As a sandbox has it; nothing of a function's files is looked at. */
    if (!library)
        library = dlopen("/run/criu/lib/deferred-$soname", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        library = dlopen("$prefix/lib/deferred-$soname", RTLD_NOW | RTLD_LOCAL);
    void *found = library ? dlsym(library, names[number]) : NULL;
    if (!found) {
        fprintf(stderr, "criu: %s cannot be loaded: %s\n", names[number], dlerror());
        abort();
    }
    deferred_slots[number] = found;
    return found;
}
EOF
    } > "$work/find.c"
    # Each function jumps to where its slot points: at first to what finds it, with all that may hold arguments kept.
    {
        echo '.text'
        number=0
        for name in $functions; do
            printf '.globl %s\n.type %s, @function\n%s: jmp *deferred_slots+%d(%%rip)\n' \
                "$name" "$name" "$name" $((8 * number))
            printf 'first_%d: pushq $%d\n jmp find\n' $number $number
            number=$((number + 1))
        done
        cat << 'EOF'
find:
    push %rax
    push %rdi
    push %rsi
    push %rdx
    push %rcx
    push %r8
    push %r9
    push %r10
    sub $128, %rsp
    movdqu %xmm0, (%rsp)
    movdqu %xmm1, 16(%rsp)
    movdqu %xmm2, 32(%rsp)
    movdqu %xmm3, 48(%rsp)
    movdqu %xmm4, 64(%rsp)
    movdqu %xmm5, 80(%rsp)
    movdqu %xmm6, 96(%rsp)
    movdqu %xmm7, 112(%rsp)
    mov 192(%rsp), %rdi
    call deferred_find
    mov %rax, %r11
    movdqu (%rsp), %xmm0
    movdqu 16(%rsp), %xmm1
    movdqu 32(%rsp), %xmm2
    movdqu 48(%rsp), %xmm3
    movdqu 64(%rsp), %xmm4
    movdqu 80(%rsp), %xmm5
    movdqu 96(%rsp), %xmm6
    movdqu 112(%rsp), %xmm7
    add $128, %rsp
    pop %r10
    pop %r9
    pop %r8
    pop %rcx
    pop %rdx
    pop %rsi
    pop %rdi
    pop %rax
    add $8, %rsp
    jmp *%r11
.section .data.rel.local, "aw"
.balign 8
.globl deferred_slots
.hidden deferred_slots
deferred_slots:
EOF
        for ((at = 0; at < number; at++)); do echo " .quad first_$at"; done
        echo '.section .note.GNU-stack, "", @progbits'
    } > "$work/slots.S"
    {
        echo "$version { global:"
        for name in $functions $data; do echo "    $name;"; done
        echo 'local: *; };'
    } > "$work/versions"
    cp -L "$prefix/lib/$soname" "$work/lib/deferred-$soname"
    # What it needs lies beside it. RPATH, not RUNPATH: only the former also serves the libraries of the libraries.
    # shellcheck disable=SC2016
    patchelf --set-soname "deferred-$soname" --force-rpath --set-rpath '$ORIGIN' "$work/lib/deferred-$soname"
    "$compiler" -shared -fPIC -O2 -Wl,-soname,"$soname" -Wl,--version-script="$work/versions" \
        -o "$work/lib/$soname" "$work/find.c" "$work/slots.S"
    made+=("$soname")
done
[ ${#made[@]} -gt 0 ] || exit 0

# All that CRIU imports is there, or it does not start.
if ! LD_BIND_NOW=1 "$prefix/lib/ld.so" --inhibit-rpath "$prefix/criu" --library-path "$work/lib:$prefix/lib" \
    "$prefix/criu" --version > "$work/said" 2>&1; then
    say "starts with all its libraries, as it does not start without: $(tail -n 1 "$work/said")"
    exit 0
fi
# In place, and each at once: processes run from this directory, and sandboxes have it mounted.
place() {
    cp "$work/lib/$1" "$prefix/lib/$1.new"
    mv -T "$prefix/lib/$1.new" "$prefix/lib/$1"
}
for soname in "${made[@]}"; do
    place "deferred-$soname"
    place "$soname"
done
say "loads ${made[*]} when it calls them"
