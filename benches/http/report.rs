//! The table: ratios within each round, and their median, least and greatest.

use std::process::Command;

use crate::Scenario;
use crate::Target;
use crate::load::{Peer, Sample, Work};
use crate::servers::lockkeeper;

/// All counted rounds of a scenario.
pub(crate) struct Row<'a> {
    pub(crate) scenario: &'a Scenario,
    pub(crate) samples: Vec<Sample>,
}

/// Says where this ran, and with what.
pub(crate) fn print_machine() {
    let cores = std::thread::available_parallelism().unwrap();
    let processors = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = processors.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("");
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load: Vec<_> = load.split(' ').take(3).collect();
    println!(
        "{cores} cores shared by client, server and Redis ({}), load before: {}",
        model.trim_start_matches([' ', '\t', ':']),
        load.join(" ")
    );
    let redis = said("redis-server", &["--version"]);
    let redis = redis.split(' ').find_map(|word| word.strip_prefix("v=")).unwrap_or("?").to_owned();
    println!(
        "{}, redis-server {redis}, webdis {}, wrk {}, Linux {}",
        said(lockkeeper().to_str().unwrap(), &["--version"]),
        package("webdis"),
        package("wrk"),
        said("uname", &["-r"]),
    );
}

/// Prints the table.
pub(crate) fn print(rows: &[Row<'_>]) {
    println!(
        "\n{:<38} {:>24} {:>20} {:>20} {:>10} {:>10}",
        "median (min..max)",
        "per second",
        "over webdis",
        "over bare route",
        "server us",
        "Redis us"
    );
    for row in rows {
        let Scenario { name, target, work, .. } = row.scenario;
        let of_webdis = match work {
            Work::Beside(_) | Work::Units | Work::Several(_) => Work::Cycle(1),
            work => *work,
        };
        let webdis = samples_of(rows, Peer::Webdis, of_webdis);
        let bare =
            samples_of(rows, Peer::Bare, if *work == Work::Fresh { *work } else { Work::Acquire });
        let over = |peers: &[Sample], figure: fn(&Sample) -> f64| {
            let pairs = row.samples.iter().zip(peers);
            spread(pairs.map(|(ours, theirs)| figure(ours) / figure(theirs)), 2)
        };
        let redis = match target {
            Target::Bare
            | Target::Etcd
            | Target::Embedded
            | Target::EmbeddedBefore
            | Target::Redlock => "-".to_owned(),
            Target::Webdis | Target::Redis | Target::RedisQuiet | Target::RedisBefore => {
                format!("{:.1}", median(row.samples.iter().map(|sample| sample.redis_micros)))
            }
        };
        println!(
            "{name:<38} {:>24} {:>20} {:>20} {:>10.1} {redis:>10}",
            spread(row.samples.iter().map(|sample| sample.operations), 0),
            over(webdis, |sample| sample.operations),
            over(bare, |sample| sample.requests),
            median(row.samples.iter().map(|sample| sample.server_micros)),
        );
    }
    print_ratios(rows);
    let others = rows.iter().flat_map(|row| row.samples.iter().map(|sample| sample.others));
    println!("\nOther processes kept {} processors busy.", spread(others, 2));
    println!(
        "The rows with a release count cycles, of two requests each; over the bare route they are\n\
         compared by requests. The last two columns are processor time for a request.\n\
         Ratios count, each taken within one round: absolute figures are noise on a shared machine."
    );
}

fn print_ratios(rows: &[Row<'_>]) {
    let print = |what: &str, ours: &[Sample], theirs: &[Sample]| {
        let pairs = ours.iter().zip(theirs);
        let ratios = pairs.map(|(ours, theirs)| ours.operations / theirs.operations);
        println!("{what}: {}", spread(ratios, 2));
    };
    let redis = of(rows, Target::Redis, Work::Acquire);
    println!();
    let before = rows.iter().filter(|row| row.scenario.target.is_before());
    for Row { scenario, samples } in before {
        let target = match scenario.target {
            Target::RedisBefore => Target::Redis,
            _ => Target::Embedded,
        };
        let now = of(rows, target, scenario.work);
        let over = |figure: fn(&Sample) -> f64| {
            spread(now.iter().zip(samples).map(|(now, before)| figure(now) / figure(before)), 2)
        };
        let (name, operations) = (scenario.name, over(|sample| sample.operations));
        let service = over(|sample| sample.server_micros);
        let redis = match scenario.target {
            Target::RedisBefore => format!(", of Redis {}", over(|sample| sample.redis_micros)),
            _ => String::new(),
        };
        println!("Now over {name}: {operations}, processor time of the service {service}{redis}");
    }
    let script = samples_of(rows, Peer::Script, Work::Acquire);
    print("Acquires on Redis over webdis with the same script", redis, script);
    let embedded = of(rows, Target::Embedded, Work::Acquire);
    print("Acquires on the embedded store over Redis", embedded, redis);
    let (one, three) = (Target::Redis, Target::Redlock);
    print("Acquires on three nodes over those on one Redis", of(rows, three, Work::Acquire), redis);
    let turns = Work::Cycle(1);
    print("  cycles at one connection", of(rows, three, turns), of(rows, one, turns));
    for connections in [64, 16, 1] {
        let cycles = |target| of(rows, target, Work::Cycle(connections));
        let what = format!("Embedded over etcd, {connections} connections");
        print(&what, cycles(Target::Embedded), cycles(Target::Etcd));
    }
}

/// The samples of the first scenario of this target and work.
fn of<'a>(rows: &'a [Row<'_>], target: Target, work: Work) -> &'a [Sample] {
    let row = rows.iter().find(|row| (row.scenario.target, row.scenario.work) == (target, work));
    &row.expect("it is among the scenarios").samples
}

fn samples_of<'a>(rows: &'a [Row<'_>], peer: Peer, work: Work) -> &'a [Sample] {
    let row = rows.iter().find(|row| (row.scenario.peer, row.scenario.work) == (peer, work));
    &row.expect("the peers are among the scenarios").samples
}

/// The median of figures, with the least and the greatest.
pub(crate) fn spread(figures: impl Iterator<Item = f64>, digits: usize) -> String {
    let sorted = sorted(figures);
    let (least, greatest) = (sorted[0], sorted[sorted.len() - 1]);
    let median = median(sorted.into_iter());
    format!("{median:.digits$} ({least:.digits$}..{greatest:.digits$})")
}

/// The figure that so many of a hundred do not exceed.
pub(crate) fn percentile(figures: &[f64], percent: usize) -> f64 {
    let sorted = sorted(figures.iter().copied());
    sorted[(sorted.len() * percent).div_ceil(100) - 1]
}

pub(crate) fn median(figures: impl Iterator<Item = f64>) -> f64 {
    let sorted = sorted(figures);
    let (low, high) = (sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2]);
    f64::midpoint(low, high)
}

fn sorted(figures: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut figures: Vec<_> = figures.collect();
    figures.sort_by(f64::total_cmp);
    figures
}

/// The version of a program that does not tell it itself.
fn package(name: &str) -> String {
    said("dpkg-query", &["--show", "--showformat=${Version}", name])
}

fn said(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    text.ok().filter(|text| !text.is_empty()).unwrap_or_else(|| "of unknown version".to_owned())
}
