//! The metrics: what pages, dashboard and alerts name is exported, and the other way round.

use std::collections::BTreeSet;
use std::time::Duration;

use lockkeeper::metrics::{Counted, Metrics};

use crate::source::{File, assert_found, assert_none, files, is_word};

#[test]
fn every_figure_is_in_the_operations_page_and_every_figure_there_exists() {
    let exported = exported();
    let mut code = File::read("src/metrics.rs").code();
    files("src/metrics", "rs").iter().for_each(|file| code.push_str(&file.code()));
    // The version, the lost log lines and the certificate are registered apart.
    let registered = code.matches("(registry, ").count() + 3;
    assert_eq!(exported.len(), registered, "a figure that this test does not count: {exported:?}");
    assert_none(&wrong_figures(&File::read("docs/operations.md"), &exported));
}

#[test]
fn every_figure_of_the_dashboard_and_the_alerts_exists() {
    let exported = exported();
    for path in ["deploy/grafana/lockkeeper.json", "deploy/prometheus/alerts.yml"] {
        assert_none(&unknown_figures(&File::read(path), &exported));
    }
}

/// The names of all figures as a scrape has them, every one of them counted once.
fn exported() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for metrics in [Metrics::for_embedded(), Metrics::for_redis(), Metrics::for_redlock()] {
        metrics.request("/", "GET", 200);
        for verb in [Counted::Acquire, Counted::Refresh, Counted::Release, Counted::ForceRelease] {
            metrics.outcome(verb, "ok");
        }
        metrics.reloaded("ok", 0);
        metrics.certificate_ends(|| 0);
        metrics.limit("waiters", 1);
        metrics.held("cron/", "released", Duration::ZERO);
        metrics.living("cron/", 0, Duration::ZERO);
        metrics.redis_call("inspect", 0.1);
        metrics.redis_error("timeout");
        metrics.redlock_attempt("granted");
        metrics.redis_up("node", true);
        metrics.redis_evicts("node", false);
        metrics.redis_rerouted("moved");
        metrics.redis_clock_lead("node").set(0.5);
        for line in metrics.render().lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
            names.insert(match line.split_once(' ').unwrap() {
                (name, "counter") => format!("{name}_total"),
                (name, "info") => format!("{name}_info"),
                (name, _) => name.to_owned(),
            });
        }
    }
    names
}

fn wrong_figures(page: &File, exported: &BTreeSet<String>) -> Vec<String> {
    let shown = shown_figures(page, exported);
    let silent = exported.difference(&shown).map(|name| format!("{name} is not explained"));
    unknown_figures(page, exported).into_iter().chain(silent).collect()
}

fn unknown_figures(page: &File, exported: &BTreeSet<String>) -> Vec<String> {
    let shown = shown_figures(page, exported);
    let unknown = shown.difference(exported);
    unknown.map(|name| format!("{}: there is no figure {name}", page.path)).collect()
}

fn shown_figures(page: &File, exported: &BTreeSet<String>) -> BTreeSet<String> {
    let begins = page.text.match_indices("lockkeeper_").map(|(at, _)| &page.text[at..]);
    let names = begins.filter_map(|rest| rest.split(|letter| !is_word(letter)).next());
    let of_histogram = |name: &str| {
        let parts = ["_bucket", "_sum", "_count"].iter().filter_map(|end| name.strip_suffix(end));
        parts.into_iter().find(|whole| exported.contains(*whole)).map(str::to_owned)
    };
    names.map(|name| of_histogram(name).unwrap_or_else(|| name.to_owned())).collect()
}

#[test]
fn a_figure_that_there_is_not_is_found() {
    let page = |text| File::planted("docs/a.md", text);
    let exported = ["lockkeeper_a", "lockkeeper_b_total"].map(str::to_owned).into();
    assert_none(&wrong_figures(&page("`lockkeeper_a_bucket{}` lockkeeper_b_total"), &exported));
    assert_found(&wrong_figures(&page("lockkeeper_a"), &exported), "_b_total is not explained");
    let other = page("lockkeeper_a lockkeeper_b_total lockkeeper_c");
    assert_found(&wrong_figures(&other, &exported), "no figure lockkeeper_c");
}
