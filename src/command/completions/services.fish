
# Prints the names of Services.
function __fish_kpx_services
    set -l words (commandline -opc)
    set -l from
    for at in (seq (count $words))
        switch $words[$at]
            case '--from=*'
                set from $words[$at]
            case --from
                set -l next (math $at + 1)
                test $next -le (count $words); and set from --from=$words[$next]
        end
    end
    kpx $from complete </dev/null 2>/dev/null
end

complete -c kpx -n "__fish_kpx_using_subcommand trace" -f -a "(__fish_kpx_services)"
complete -c kpx -n "__fish_kpx_using_subcommand why" -f -a "(__fish_kpx_services)"
complete -c kpx -n "__fish_kpx_using_subcommand top" -f -a "(__fish_kpx_services)"
complete -c kpx -n "__fish_kpx_using_subcommand show" -f -a "(__fish_kpx_services)"
