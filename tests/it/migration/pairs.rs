//! Old code and new, as they stand on the page, at the same time.

use crate::migration::{PAGE, RECIPES, REDLOCK, SETNX, Site, new, old, shown};
use crate::php::FAR_FUTURE;
use crate::readme::blocks;
use crate::support::Script;

/// Two scripts of a recipe, on this site.
fn pair(site: &Site, recipe: &str) -> [Script; 2] {
    let new = new(recipe);
    // Whoever waits is refused in the end; not here for as long as on the page.
    let changes: &[_] =
        if new.text.contains("wait=10s") { &[("wait=10s", "wait=300ms")] } else { &[] };
    [site.script(old(recipe)), site.changed(new, changes)]
}

#[test]
fn every_recipe_of_the_page_is_run_here() {
    let (_, recipes) = PAGE.split_once("\n## Recipes\n").unwrap();
    let (recipes, _) = recipes.split_once("\n## ").unwrap();
    let headings: Vec<_> = recipes.lines().filter(|line| line.starts_with("### ")).collect();
    assert_eq!(headings, RECIPES);
    for recipe in RECIPES {
        assert_eq!(shown(recipe).len(), if recipe == REDLOCK { 1 } else { 2 }, "{recipe}");
    }
    // The function that they share.
    assert_eq!(blocks(recipes).len(), 2 * RECIPES.len() - 1 + 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn old_code_and_new_exclude_each_other_both_ways() {
    for recipe in RECIPES.into_iter().filter(|recipe| *recipe != REDLOCK) {
        let site = Site::start(FAR_FUTURE);
        let [old, new] = pair(&site, recipe);
        site.exclude_each_other([&old, &new]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn redlock_code_and_new_code_exclude_each_other_on_the_same_nodes() {
    let site = Site::redlock().await;
    let [old, new] = pair(&site, REDLOCK);
    site.exclude_each_other([&old, &new]).await;
}

/// The first one's new code is that of every recipe, as all of them are one lock to the service.
#[tokio::test(flavor = "multi_thread")]
async fn the_first_new_code_does_beside_every_recipe_on_one_redis() {
    let site = Site::start(&[]);
    let new = site.changed(new(SETNX), &[("= bin2hex", "= '9999999999-' . bin2hex")]);
    for recipe in RECIPES.into_iter().filter(|recipe| *recipe != REDLOCK) {
        site.exclude_each_other([&site.script(old(recipe)), &new]).await;
    }
}
