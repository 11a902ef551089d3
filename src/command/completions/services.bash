
# Adds the names of Services to the arguments that take one.
_kpx_services() {
    _kpx "$@"
    local cur="${COMP_WORDS[COMP_CWORD]}" prev="${COMP_WORDS[COMP_CWORD-1]}"
    local at word takes="" view="" from=()
    [[ "${cur}" == -* || "${prev}" == -* || "${prev}" == "=" ]] && return 0
    for (( at = 1; at < COMP_CWORD; at++ )); do
        word="${COMP_WORDS[at]}"
        case "${word}" in
            trace|why|top) takes="yes" ;;
            show) view="yes" ;;
            services|chains|ipvs|sets|nodeports|conntrack|affinity) [[ -n "${view}" ]] && takes="yes" ;;
            --from)
                # In some versions = is a word of its own.
                [[ "${COMP_WORDS[at+1]}" == "=" ]] && (( at++ ))
                from=("--from=${COMP_WORDS[at+1]/#\~/${HOME}}")
                (( at++ ))
                ;;
        esac
    done
    [[ -n "${takes}" ]] || return 0
    COMPREPLY=( $(compgen -W "$("$1" "${from[@]}" complete </dev/null 2>/dev/null)" -- "${cur}") )
    return 0
}

complete -F _kpx_services -o bashdefault -o default kpx
