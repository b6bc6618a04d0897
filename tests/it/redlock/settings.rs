//! Instances whose lists of nodes, or longest leases, differ.

use std::time::{Duration, Instant};

use crate::redlock::contest::Contest;
use crate::redlock::operator::{name, run};
use crate::redlock::{PATIENCE, Site, serves, unavailable};
use crate::support::{Process, Redis, eventually};

const LONGEST: Duration = Duration::from_secs(4);

/// An instance with a list of the first `nodes` of the site.
pub(super) fn instance(site: &Site, nodes: usize, longest: &str) -> Process {
    let urls: Vec<_> = site.nodes[..nodes].iter().map(Redis::url).collect();
    let stores: Vec<_> = urls.iter().flat_map(|url| ["--store", url.as_str()]).collect();
    let variables = [
        ("LOCKKEEPER_REDLOCK_LONGEST_LEASE", longest),
        ("LOCKKEEPER_TTL_DEFAULT", "1s"),
        ("LOCKKEEPER_REDLOCK_NODE_TIMEOUT", "400ms"),
    ];
    Process::start_with(&stores, &variables)
}

/// Makes nodes serve the first `nodes` of the site with this longest lease.
fn admit(site: &Site, nodes: usize, those: &[Redis], longest: Duration) {
    let stores = site.nodes[..nodes].iter().map(Redis::url).collect::<Vec<_>>().join(" ");
    let names: Vec<_> = those.iter().map(name).collect();
    let words: Vec<_> = ["admit"].into_iter().chain(names.iter().map(String::as_str)).collect();
    let (told, error, code) = run(&stores, &words, longest);
    assert_eq!(code, Some(0), "{error}");
    assert_eq!(told.matches("serves these settings from now on").count(), those.len(), "{told}");
}

/// As an operator does who forgets that the old instances have to go first.
#[tokio::test(flavor = "multi_thread")]
async fn instances_with_five_nodes_take_over_from_those_with_three_once_an_operator_says_so() {
    let site = Site::new((0..5).map(|_| Redis::start()).collect(), LONGEST).await;
    let old = [instance(&site, 3, "4s"), instance(&site, 3, "4s")];
    for one in &old {
        serves(&one.http()).await;
    }
    let new = instance(&site, 5, "4s");
    let all = [old[0].http(), old[1].http(), new.http()];
    let contest = Contest::begin(&all);
    contest.goes_on(20).await;
    let began = Instant::now();
    while began.elapsed() < LONGEST * 2 {
        let answer = new.http().post("/locks/new", "").await;
        assert_eq!(answer.told(), unavailable(), "{answer:?}");
        assert_eq!(answer.text("outcome"), "not_acquired");
    }
    let log = new.log();
    let lines: Vec<_> = log
        .lines()
        .filter(|line| line.contains("redlock::watch"))
        .filter(|line| line.contains("nodes serve instances with other settings"))
        .collect();
    assert_eq!(lines.len(), 1, "{lines:#?}");
    assert!(lines[0].contains("(3 nodes, "), "{lines:?}");
    contest.goes_on(20).await;
    let (grants, _) = contest.finish().await;
    assert!(grants >= 40);
    old.into_iter().for_each(Process::kill);
    let gone = Instant::now();
    while gone.elapsed() < LONGEST * 3 / 2 {
        assert_eq!(new.http().post("/locks/new", "").await.told(), unavailable());
    }
    let admitted = Instant::now();
    admit(&site, 5, &site.nodes[..3], LONGEST);
    assert_eq!(new.http().post("/locks/new", "").await.told(), unavailable());
    serves(&new.http()).await;
    let took = admitted.elapsed();
    assert!(took > LONGEST, "the leases of the others may not be over: {took:?}");
    assert!(took < LONGEST * 2, "{took:?}");
    let contest = Contest::begin(&[new.http()]);
    contest.goes_on(20).await;
    contest.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_with_another_longest_lease_grants_nothing_while_the_others_are_there() {
    let site = Site::lasting(3, LONGEST).await;
    let old = instance(&site, 3, "4s");
    serves(&old.http()).await;
    let new = instance(&site, 3, "3s");
    eventually(PATIENCE, async || {
        new.log().contains("redlock.longest_lease 4000 ms").then_some(())
    })
    .await;
    assert_eq!(new.http().post("/locks/new", "").await.told(), unavailable());
    assert_eq!(new.http().get("/readyz").await.status, 503);
    assert_eq!(old.http().post("/locks/old", "").await.status, 201);
    drop(old);
    admit(&site, 3, &site.nodes, Duration::from_secs(3));
    serves(&new.http()).await;
    eventually(PATIENCE, async || (new.http().get("/readyz").await.status == 200).then_some(()))
        .await;
    let too_long = new.http().post("/locks/new?ttl=3001ms", "").await;
    assert_eq!(too_long.told(), (400, "invalid_request".to_owned()), "{too_long:?}");
}
