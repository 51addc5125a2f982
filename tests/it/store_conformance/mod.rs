//! The one conformance suite of the store: every case runs against every engine, on a database of its own.
//! Must never know: SQL, but for the damage some cases do; what only one engine can be asked lies in a file of its own.

// Clippy allows it in functions marked as tests only; a case is called by one.
#![allow(clippy::unwrap_used)]

mod accepting;
mod cancelling;
mod claiming;
mod damage;
mod deriving;
mod devices;
mod explaining;
mod exporting;
mod flushing;
mod freezing;
mod importing;
mod instances;
mod model;
mod postgres_away;
mod postgres_only;
mod retaining;
mod settling;
mod sweeping;
mod verdicts;
mod world;

/// Each case as `postgres::<case>` and `sqlite::<case>`. A case that is not listed is dead code, which does not compile
/// without a warning.
macro_rules! on_every_engine {
    ($($file:ident::$case:ident,)+; with a hand in the tables: $($damage:ident,)+) => {
        mod postgres {
            use std::sync::Arc;

            use fanfare::store::Store;
            use fanfare::store::postgres::PostgresStore;

            use super::damage::Hand;
            use crate::harness::postgres::TestDatabase;

            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    let database = TestDatabase::create().await;
                    let store = PostgresStore::connect(&database.url.clone().into(), 8).expect("the URL parses");
                    store.migrate().await.expect("an empty database takes the schema");
                    let store: Arc<dyn Store> = Arc::new(store);
                    super::$file::$case(store.clone()).await;
                    store.close().await;
                }
            )+

            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $damage() {
                    let database = TestDatabase::create().await;
                    let store = PostgresStore::connect(&database.url.clone().into(), 4).expect("the URL parses");
                    store.migrate().await.expect("an empty database takes the schema");
                    let store: Arc<dyn Store> = Arc::new(store);
                    let hand = Hand::Postgres(database.connection().await);
                    super::damage::$damage(store.clone(), hand).await;
                    store.close().await;
                }
            )+
        }

        mod sqlite {
            use std::sync::Arc;

            use fanfare::store::Store;
            use fanfare::store::sqlite::SqliteStore;
            use sqlx::ConnectOptions;
            use sqlx::sqlite::SqliteConnectOptions;

            use super::damage::Hand;

            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    let directory = tempfile::tempdir().expect("a temporary directory");
                    let store = SqliteStore::open(&directory.path().join("fanfare.db")).await.expect("the file opens");
                    store.migrate().await.expect("an empty database takes the schema");
                    let store: Arc<dyn Store> = Arc::new(store);
                    super::$file::$case(store.clone()).await;
                    store.close().await;
                }
            )+

            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $damage() {
                    let directory = tempfile::tempdir().expect("a temporary directory");
                    let path = directory.path().join("fanfare.db");
                    let store = SqliteStore::open(&path).await.expect("the file opens");
                    store.migrate().await.expect("an empty database takes the schema");
                    let store: Arc<dyn Store> = Arc::new(store);
                    let hand = SqliteConnectOptions::new().filename(&path).connect().await.expect("it opens again");
                    super::damage::$damage(store.clone(), Hand::Sqlite(hand)).await;
                    store.close().await;
                }
            )+
        }
    };
}

on_every_engine! {
    accepting::twenty_parallel_posts_of_one_event_make_one_fanout,
    accepting::the_same_id_with_other_content_conflicts,
    accepting::an_accepted_event_is_read_back_as_it_was,
    accepting::what_could_not_begin_in_time_is_not_kept,
    accepting::chunks_that_nobody_has_in_hand_are_counted_by_class,
    accepting::migrating_again_applies_nothing_and_the_store_is_ready,
    freezing::a_freeze_goes_on_across_pages_and_ends_in_chunks,
    freezing::a_repeated_step_changes_nothing_and_answers_the_same,
    freezing::a_step_is_lost_once_another_instance_owns_the_freeze,
    freezing::a_freeze_of_a_live_instance_is_not_taken,
    freezing::an_own_freeze_lost_on_its_way_is_taken_unless_it_runs,
    freezing::a_page_holds_only_followers_that_want_the_kind,
    freezing::a_fanout_without_followers_is_complete_after_its_last_step,
    freezing::rows_that_come_and_go_between_two_pages_are_frozen_once_or_not_at_all,
    claiming::chunks_are_claimed_by_class_and_then_by_rank,
    claiming::only_what_goes_before_a_place_is_claimed_when_asked,
    claiming::what_is_overdue_is_claimed_by_itself,
    claiming::others_are_those_of_which_nothing_is_in_hand,
    claiming::the_floor_is_the_first_chunk_of_the_least_urgent_class,
    claiming::the_floor_passes_by_what_is_paused_or_waits,
    claiming::two_claimers_never_get_the_same_chunk,
    claiming::a_claim_looks_up_the_token_of_now_and_reports_who_is_gone,
    claiming::a_released_chunk_waits_until_its_time_and_is_not_unclean,
    claiming::an_instance_finds_what_it_owns_without_having_been_told,
    claiming::a_release_under_an_old_epoch_changes_nothing,
    claiming::a_chunk_that_was_put_off_is_open_once_it_is_called_back,
    flushing::a_repeated_flush_changes_nothing,
    flushing::flushes_commute,
    flushing::a_zombies_bits_count_but_do_not_own,
    flushing::ok_wins_over_a_failure_row_in_either_order,
    flushing::the_first_failure_row_of_a_recipient_stays,
    flushing::only_the_owners_epoch_ends_a_chunk_for_the_rest,
    flushing::a_flush_of_many_chunks_answers_for_each,
    flushing::counters_of_instances_are_absolute_and_merged,
    flushing::a_bitmap_of_another_length_is_corruption_and_writes_nothing,
    settling::exactly_one_of_eight_callers_settles,
    settling::of_two_that_close_the_last_chunks_at_once_one_settles,
    settling::a_fanout_with_an_open_chunk_or_freeze_stays_open,
    settling::a_settled_tally_never_changes,
    settling::a_verdict_holds_only_for_the_version_it_was_found_on,
    settling::judgement_is_withheld_when_the_dead_share_leaps,
    settling::judged_devices_are_not_followers_any_more,
    settling::the_sweep_finds_what_is_complete_and_what_is_unreported,
    settling::lists_are_newest_first_and_filtered_by_state,
    settling::a_list_of_a_window_of_time_has_what_was_accepted_in_it,
    verdicts::a_device_that_changed_between_send_and_settle_is_not_judged,
    verdicts::a_judged_device_comes_back_by_registering_with_the_same_or_another_token,
    verdicts::small_fanouts_that_find_everybody_dead_are_withheld_together,
    verdicts::a_leap_is_measured_by_what_the_fleet_has_seen,
    verdicts::one_platform_that_leaps_keeps_no_other_from_being_judged,
    verdicts::a_fanout_of_which_nobody_answered_learns_nothing,
    retaining::only_what_is_old_settled_and_reported_is_deleted,
    retaining::a_fanout_disappears_whole_though_its_rows_go_in_steps,
    retaining::an_event_that_comes_again_in_the_middle_is_a_new_one,
    retaining::traces_of_devices_and_instances_go_when_nothing_needs_them,
    retaining::one_instance_at_a_time_deletes,
    cancelling::of_eight_that_cancel_one_does,
    cancelling::what_has_ended_is_not_cancelled,
    cancelling::what_is_in_hand_is_ended_by_its_owner_who_hears_of_it,
    cancelling::what_comes_back_to_a_cancelled_fanout_ends_with_the_next_settle,
    cancelling::a_set_aside_fanout_can_be_cancelled,
    cancelling::a_freeze_stops_where_the_cancel_met_it,
    cancelling::a_fanout_cancelled_before_its_freeze_settles_with_nobody,
    cancelling::a_cancel_in_the_middle_of_everything_leaves_nothing_open,
    deriving::a_correction_stops_what_it_corrects_and_takes_its_place,
    deriving::a_correction_of_what_is_settled_or_cancelled_works_from_kept_facts,
    deriving::a_correction_of_a_correction_reaches_whoever_saw_any_of_them,
    deriving::a_correction_that_comes_first_ends_its_original_as_it_comes,
    deriving::an_event_of_another_match_is_not_corrected,
    deriving::an_original_and_its_correction_at_once_never_miss_each_other,
    deriving::of_many_corrections_at_once_one_is_left,
    deriving::a_correction_in_the_middle_joins_two_chains,
    deriving::a_correction_in_the_middle_that_comes_after_the_last_was_sent_is_refused_and_says_why,
    deriving::news_that_comes_back_while_its_correction_is_held_is_all_that_is_sent,
    deriving::the_same_news_under_twenty_ids_at_once_is_one_fanout,
    deriving::the_same_news_is_new_again_when_the_first_is_over,
    deriving::a_held_freeze_is_found_when_its_hold_is_over,
    deriving::who_never_saw_it_is_counted_once_for_each_step,
    deriving::of_eight_replays_one_is_made,
    deriving::only_what_has_ended_and_stands_is_replayed,
    deriving::a_replay_is_for_those_that_failed_and_were_not_reached_since,
    deriving::what_was_set_aside_ends_with_its_replay,
    deriving::a_budget_is_that_of_all_instances_and_pauses_until_it_is_resumed,
    deriving::nothing_of_a_paused_fanout_is_in_hand_as_it_is_frozen_and_whoever_asks_hears_of_it,
    deriving::a_paused_fanout_is_claimed_again_past_its_deadline,
    explaining::every_recipient_is_found_in_its_chunk,
    explaining::an_outcome_is_told_with_all_that_is_kept_of_it,
    explaining::a_lost_owner_is_told_from_a_live_one,
    explaining::what_bears_on_an_absence_is_kept_with_its_time,
    explaining::a_deleted_device_keeps_its_place,
    explaining::a_freeze_cut_short_is_told_from_one_that_ended,
    sweeping::a_sweep_goes_on_at_the_first_device_without_an_outcome_wherever_it_is,
    instances::an_expired_lease_is_taken_over_with_a_new_epoch_and_unclean,
    instances::an_orderly_leave_hands_chunks_back_clean,
    instances::a_live_lease_is_not_taken_over,
    instances::a_chunk_without_progress_is_set_aside_and_keeps_its_fanout_open,
    instances::progress_forgives_earlier_takeovers,
    instances::a_lost_instance_interrupts_a_fanout_once,
    instances::what_an_instance_owns_is_found,
    devices::a_device_is_registered_updated_and_deleted,
    devices::the_version_moves_only_when_something_to_send_by_changed,
    devices::a_token_moves_with_its_latest_owner,
    devices::parallel_registrations_of_one_token_leave_one_device,
    devices::mutes_and_death_are_folded_into_kinds_and_revival_restores_them,
    devices::follows_are_replaced_as_a_set,
    importing::an_import_creates_updates_and_follows,
    devices::a_former_owner_can_touch_nobody_and_two_phones_are_two,
    devices::a_token_that_moves_after_the_freeze_is_gone_for_its_former_device,
    exporting::pages_hold_every_device_once_as_it_is_shown_alone,
    importing::a_batch_that_names_a_device_or_a_token_twice_is_a_fault_of_ours,
    importing::an_import_revives_nobody_unless_it_is_asked_to,
    importing::a_row_that_says_its_device_is_dead_makes_no_live_one_dead,
    importing::a_row_that_says_its_device_is_dead_lives_when_it_is_asked_to,
    importing::an_import_moves_and_swaps_tokens,
    importing::a_line_without_follows_leaves_them_as_they_are,
    importing::a_row_that_says_what_is_there_changes_no_time,
    importing::two_imports_of_the_same_new_devices_at_once_count_each_once,
    importing::a_large_batch_of_new_devices_is_kept_in_the_order_of_the_file,
    model::random_operations_agree_with_a_model,
    ; with a hand in the tables:
    a_chunk_that_does_not_parse_neither_stays_owned_nor_stops_the_others,
    a_freeze_step_hands_out_only_what_parses,
    a_freeze_whose_event_does_not_parse_is_passed_over_and_never_leased,
    a_lost_chunk_that_does_not_parse_stops_no_heartbeat,
    a_line_that_does_not_parse_stops_no_other,
    a_device_in_an_unknown_state_stops_no_import_and_may_register_again,
}
