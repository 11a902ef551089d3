//! The tests of chosen recordings, on every recording.

use crate::support::{CHOSEN, every, recordings};
use crate::{
    across, docs, doctor, hostile, migrate, nodes, pastes, proof, providers, redact, registry,
    snapshot, trace, verdict,
};

#[test]
fn chosen_recordings_are_there() {
    let all = recordings();
    let unknown = CHOSEN
        .iter()
        .find(|name| !all.iter().any(|recording| recording == *name));
    assert_eq!(unknown, None, "no such recording");
}

#[tokio::test]
#[ignore = "takes minutes: make test-loops"]
async fn no_two_commands_disagree() {
    verdict::agree::commands_agree(verdict::with_incidents(every())).await;
}

#[test]
#[ignore = "takes minutes: make test-loops"]
fn a_brief_walk_ends_like_a_whole_one() {
    verdict::brief_walks_end_alike(verdict::with_incidents(recordings()));
}

#[test]
#[ignore = "takes minutes: make test-loops"]
fn a_reply_is_judged_as_if_no_other_was_known() {
    verdict::replies_are_judged_alike(verdict::with_incidents(recordings()));
}

#[test]
#[ignore = "takes minutes: make test-loops"]
fn each_cause_is_necessary_and_sufficient() {
    verdict::causes_hold(verdict::with_incidents(every()));
}

#[test]
#[ignore = "takes minutes: make test-loops"]
fn removing_evidence_never_turns_anything_into_works() {
    verdict::less_evidence::less_evidence_never_works(verdict::with_incidents(every()));
}

#[test]
#[ignore = "takes minutes: make test-loops"]
fn a_check_reads_only_its_needs() {
    registry::needs_suffice(every());
}

#[test]
#[ignore = "takes minutes: make test-loops"]
fn the_doctor_and_the_diff_say_the_same_of_a_redacted_bundle() {
    redact::diagnosis_is_kept(&every());
}

#[test]
#[ignore = "takes minutes: make test-loops"]
fn every_setting_flag_and_option_is_kept_by_redaction() {
    let (values, options) = redact::varied::ALL;
    redact::varied::settings_are_kept(values);
    redact::varied::flags_are_kept(values);
    redact::varied::options_are_kept(options);
}

#[test]
#[ignore = "takes minutes: make test-loops"]
fn random_clusters_without_a_difference_have_none_after_redaction() {
    redact::varied::random_clusters_stay_without(0..12);
}

#[test]
#[ignore = "takes minutes: make test-loops"]
fn a_trace_says_the_same_of_a_redacted_bundle() {
    redact::traces_are_kept(&every(), 60);
}

#[test]
#[ignore = "takes minutes: make test-loops"]
fn nothing_of_the_cluster_is_left_after_redaction() {
    snapshot::redaction_leaves_nothing(&every());
}

#[tokio::test]
#[ignore = "takes minutes: make test-loops"]
async fn every_report_on_recordings_fits_its_schema() {
    let kinds = ["dual-", "faults-", "full-", "seed-left", "userspace-"];
    docs::schema::reports_fit(every(), &kinds).await;
}

#[tokio::test]
#[ignore = "takes minutes: make test-loops"]
async fn every_page_fits_eighty_columns() {
    doctor::pages_fit(recordings()).await;
}

#[tokio::test]
#[ignore = "takes minutes: make test-loops"]
async fn every_output_has_the_same_counts() {
    doctor::voice::counts_agree(every()).await;
}

#[tokio::test]
#[ignore = "takes minutes: make test-loops"]
async fn no_line_repeats_its_object() {
    doctor::voice::objects_stand_once(every()).await;
}

#[tokio::test]
#[ignore = "takes minutes: make test-loops"]
async fn a_planned_switch_has_one_exit_status() {
    let every = every();
    let names: Vec<&str> = every.iter().map(String::as_str).collect();
    doctor::switches_have_one_status(&names).await;
}

#[tokio::test]
#[ignore = "takes minutes: make test-loops"]
async fn the_first_word_of_a_trace_is_the_fate_in_json() {
    trace::first_words_are_fates(every()).await;
}

#[tokio::test]
#[ignore = "takes minutes: make test-loops"]
async fn every_junit_is_well_formed_and_counts_right() {
    doctor::formats::junit_is_right(every()).await;
}

#[tokio::test]
#[ignore = "takes minutes: make test-loops"]
async fn every_textfile_is_what_the_collector_takes() {
    doctor::formats::textfiles_are_right(every()).await;
}

#[tokio::test]
#[ignore = "takes minutes: make test-loops"]
async fn every_strategy_has_its_loss_and_the_chosen_one_its_reason() {
    migrate::screen::strategies_have_their_loss(migrate::screen::recorded, migrate::directions())
        .await;
}

#[tokio::test]
#[ignore = "takes minutes: make test-loops"]
async fn a_dry_run_prints_the_plan() {
    migrate::screen::dry_runs_print_plans(migrate::directions()).await;
}

#[tokio::test]
#[ignore = "takes minutes: make test-loops"]
async fn json_has_the_same_plan() {
    migrate::screen::json_has_plans(migrate::directions()).await;
}

#[tokio::test]
#[ignore = "takes minutes: make test-loops"]
async fn no_command_prints_what_a_terminal_would_obey() {
    hostile::commands_print_nothing_hostile(hostile::NODES).await;
}

#[tokio::test]
#[ignore = "takes minutes: make test-loops"]
async fn no_error_about_a_file_prints_what_a_terminal_would_obey() {
    hostile::errors_print_nothing_hostile(hostile::REFUSED).await;
}

#[test]
#[ignore = "takes minutes: make test-loops"]
fn a_finding_is_no_worse_than_the_severity_of_its_check() {
    registry::severities_hold(every());
}

#[tokio::test]
#[ignore = "takes minutes: make test-loops"]
async fn the_screen_has_the_number_of_what_it_omits() {
    doctor::voice::screens_are_whole(recordings()).await;
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn a_page_with_a_wrong_command_fails() {
    providers::run::wrong_pages_fail(providers::run::WRONG).await;
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn rules_and_services_are_compared_without_a_configuration() {
    pastes::answers::compared_without_a_configuration(&[
        ("full-iptables", "-A KUBE-SERVICES -d "),
        ("full-iptables-v1.30", "-A KUBE-SERVICES -d "),
        ("full-nftables", " : goto service-"),
    ])
    .await;
}

#[test]
#[ignore = "takes long: make test-loops"]
fn a_request_to_stop_ends_the_step_and_the_rest_can_be_resumed_or_rolled_back() {
    migrate::requests_to_stop_end_the_step(&migrate::CIRCLE);
}

#[test]
#[ignore = "takes long: make test-loops"]
fn an_ended_migration_can_be_rolled_back_and_that_may_be_interrupted() {
    migrate::rollbacks::rollbacks_may_be_interrupted(&migrate::CIRCLE);
}

#[test]
#[ignore = "takes long: make test-loops"]
fn a_service_that_something_else_answers_rolls_back() {
    migrate::rollbacks::misled_services_roll_back(migrate::directions());
}

#[test]
#[ignore = "takes long: make test-loops"]
fn rules_that_kube_proxy_rewrites_meanwhile_are_planned_again() {
    migrate::one_node::rewritten_rules_are_planned_again(migrate::directions());
}

#[test]
#[ignore = "takes long: make test-loops"]
fn joining_nodes_makes_nothing_work_that_fails_and_leaves_what_is_healthy() {
    let (compared, followed) = across::joined_nodes_are_judged_alike(recordings());
    assert!(compared > 4000 && followed > 30, "{compared}, {followed}");
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn json_and_yaml_keep_each_node_whole() {
    nodes::commands::nodes_are_kept_whole(&[
        "diff",
        "show services",
        "trace default/nginx-svc-nodeport",
        "preflight --to ipvs",
    ])
    .await;
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn a_node_that_is_ready_for_a_switch_has_no_blockers() {
    doctor::no_blockers_on(&["full-"]).await;
}

#[test]
#[ignore = "takes long: make test-loops"]
fn healthy_nodes_treat_every_packet_as_expected() {
    proof::packets_are_treated_as_expected(&[
        "seed-leftover-iptables-to-ipvs",
        "dual-iptables",
        "dual-ipvs",
        "full-iptables",
        "full-iptables-masqall",
        "full-iptables-v1.30",
        "full-nftables",
        "full-ipvs",
    ]);
}

#[test]
#[ignore = "takes long: make test-loops"]
fn the_bridge_sends_every_packet_to_a_service_where_its_mode_would() {
    proof::bridges_send_packets_alike(&["full-iptables", "full-nftables", "full-ipvs"]);
}

#[test]
#[ignore = "takes long: make test-loops"]
fn a_known_bug_shows_in_redacted_evidence() {
    doctor::known_bugs::known_bugs_show(true);
}
