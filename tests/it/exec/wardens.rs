//! The process that kills COMMAND when the wrapper cannot is always there.

use std::time::Duration;

use crate::exec::proxy::Proxy;
use crate::exec::ticker::{Manners, Ticker};
use crate::exec::{Going, Stage, dead, exec, lives, state};
use crate::support::process::signal;
use crate::support::{PATIENCE, eventually};

#[tokio::test(flavor = "multi_thread")]
async fn a_warden_that_dies_is_replaced_by_one_that_does_the_same() {
    for fault in ["KILL", "STOP"] {
        let stage = Stage::new();
        let proxy = Proxy::before(stage.service.http().address).await;
        let ticker = Ticker::new(stage.path("ticks"));
        let words = ticker.words_of_a_grandchild(Manners::Deaf);
        let flags = ["-t", "5s", "-k", "500ms", "key"];
        let words: Vec<&str> = flags.into_iter().chain(words.iter().map(String::as_str)).collect();
        let going = Going::start(exec(&proxy.url(), &words));
        let pid = ticker.ticks().await;
        let first = warden(going.child.id()).unwrap();
        signal(first, "KILL");
        let another = async || warden(going.child.id()).filter(|pid| *pid != first);
        eventually(PATIENCE, another).await;
        assert!(lives(pid));
        going.signal(fault);
        dead(pid).await;
        let (last, end) = (ticker.last(), proxy.answered() + Duration::from_secs(5));
        assert!(last < end, "{fault}: it ran until {last:?}, the lease ended at {end:?}");
        if fault == "STOP" {
            going.signal("CONT");
            assert_eq!(going.end().code, Some(79));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_leases_of_a_wrapper_that_is_killed_are_given_back_once_its_command_is_dead() {
    let stage = Stage::new();
    for (flags, is_freed) in
        [(&[][..], true), (&["--also", "b c"], true), (&["--min-hold", "1h"], false)]
    {
        let ticker =
            Ticker::new(stage.path(&format!("ticks-{}", flags.len() + usize::from(is_freed))));
        let words = ticker.words_of_a_grandchild(Manners::Deaf);
        let flags: Vec<&str> = flags.iter().chain(&["-t", "10m", "a"]).copied().collect();
        let words: Vec<&str> = flags.into_iter().chain(words.iter().map(String::as_str)).collect();
        let going = Going::start(stage.exec(&words));
        let pid = ticker.ticks().await;
        going.signal("KILL");
        let held = async |key: &str| stage.look(key).await["held"] == true;
        if is_freed {
            for key in ["a", "b%20c"] {
                eventually(PATIENCE, async || (!held(key).await).then_some(())).await;
                assert!(!lives(pid), "{key} is free, and COMMAND lives");
            }
        } else {
            dead(pid).await;
            assert!(held("a").await);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_warden_that_is_stopped_goes_on() {
    let stage = Stage::new();
    let ticker = Ticker::new(stage.path("ticks"));
    let words = ticker.words(Manners::Polite);
    let words: Vec<&str> = ["key"].into_iter().chain(words.iter().map(String::as_str)).collect();
    let going = Going::start(stage.exec(&words));
    ticker.ticks().await;
    let warden = warden(going.child.id()).unwrap();
    signal(warden, "STOP");
    let goes_on = async || (state(warden) == Some('S')).then_some(());
    eventually(PATIENCE, goes_on).await;
    going.signal("TERM");
    assert_eq!(going.end().code, Some(143));
}

/// The child of a wrapper that is its warden.
fn warden(wrapper: u32) -> Option<u32> {
    let children = std::fs::read_to_string(format!("/proc/{wrapper}/task/{wrapper}/children"));
    let children = children.unwrap_or_default();
    let mut children = children.split_whitespace().map(|pid| pid.parse().unwrap());
    children.find(|pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line == b"lockkeeper\0exec:warden\0"
    })
}
