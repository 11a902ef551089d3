# Completes names that kpx reads: of Services, pods, nodes, chains and the like; or files.
_kpx_names() {
    local -a names
    names=(${(f)"$(kpx complete -- ${words[2,CURRENT]} </dev/null 2>/dev/null)"})
    # A name may complete the word without its namespace in front.
    (( $#names )) && compadd -U -a names || _default
}
