
# Adds names that kpx reads: of Services, pods, nodes, chains and the like.
_kpx_names() {
    _kpx "$@"
    local names
    [[ "${COMP_WORDS[COMP_CWORD]}" == -* ]] && return 0
    names="$("$1" complete -- "${COMP_WORDS[@]:1:COMP_CWORD}" </dev/null 2>/dev/null)"
    [[ -n "${names}" ]] && mapfile -t COMPREPLY <<<"${names}"
    return 0
}

complete -F _kpx_names -o bashdefault -o default kpx
