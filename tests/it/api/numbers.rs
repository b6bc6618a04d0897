//! The advice of the page for clients on fencing tokens, where numbers are floats.

use crate::support::Redis;
use crate::support::process::{command, succeeds};

const PAGE: &str = include_str!("../../../docs/clients.md");

/// Two leases that differ in their last digit.
const EARLIER: &str = "1795181559095791";
const LATER: &str = "1795181559095792";

#[test]
fn what_the_page_says_keeps_all_digits_and_what_it_warns_of_does_not() {
    for advice in
        ["`printf \"%.0f\"`", "`$1 > $2`", "`string.format(\"%.0f\", n)`", "`tostring(n)`"]
    {
        assert!(PAGE.contains(advice), "{advice}");
    }
    let awk = "{ printf \"%.0f %s %d\", $1, $2, ($2 > $1) }";
    let fields = format!("echo {EARLIER} {LATER} | awk '{awk}'");
    let told = succeeds(command("sh").args(["-c", &fields]));
    assert_eq!(told, format!("{EARLIER} {LATER} 1"));

    let redis = Redis::start();
    let lua = |script: &str| redis.run_words::<String>(&["EVAL", script, "0", EARLIER, LATER]);
    assert_eq!(lua("return string.format('%.0f', tonumber(ARGV[1]))"), EARLIER);
    assert_eq!(lua("return tostring(tonumber(ARGV[2]) > tonumber(ARGV[1]))"), "true");
    let lost = ["tostring(tonumber(ARGV[1]))", "tostring(tonumber(ARGV[2]))"];
    let [earlier, later] = lost.map(|number| lua(&format!("return {number}")));
    assert_eq!((&*earlier, &*later), ("1.7951815590958e+15", "1.7951815590958e+15"));
}
