
# Prints names that kpx reads: of Services, pods, nodes, chains and the like.
function __fish_kpx_names
    set -l words (commandline -opc)
    kpx complete -- $words[2..] (commandline -ct) </dev/null 2>/dev/null
end

complete -c kpx -a "(__fish_kpx_names)"
