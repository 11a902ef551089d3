# Completes the names of Services.
_kpx_services() {
    local from=${opt_args[--from]}
    local -a names
    names=(${(f)"$(kpx ${from:+--from=$from} complete </dev/null 2>/dev/null)"})
    compadd -a names
}
