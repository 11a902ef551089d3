
# Adds names that kpx reads: of Services, pods, nodes, chains and the like.
_kpx_names() {
    _kpx "$@"
    local names each at=$COMP_CWORD
    [[ "${COMP_WORDS[at]}" == -* ]] && return 0
    # Options are offered behind a dash.
    local -a words=("${COMPREPLY[@]}")
    COMPREPLY=()
    for each in "${words[@]}"; do
        [[ "${each}" == -* ]] || COMPREPLY+=("${each}")
    done
    names="$("$1" complete -- "${COMP_WORDS[@]:1:COMP_CWORD}" </dev/null 2>/dev/null)"
    [[ -n "${names}" ]] && mapfile -t COMPREPLY <<<"${names}"
    # For bash, a word ends at a colon.
    if [[ "${COMP_WORDS[at]}" == : || ( at -gt 1 && "${COMP_WORDS[at - 1]}" == : ) ]]; then
        COMPREPLY=("${COMPREPLY[@]##*:}")
    fi
    return 0
}

complete -F _kpx_names -o bashdefault -o default kpx
