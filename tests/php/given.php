<?php

// What docs/migration.md takes for granted: `$redis`, `$nodes` and `work()`. The ports of the nodes
// are in `$ports`, with commas between them.

require_once __DIR__ . '/recipes.php';

$nodes = array_map(connected(...), explode(',', $ports));
$redis = $nodes[0];

/** Works until a line comes, or the end of what is typed. */
function work(): void
{
    echo "at work\n";
    fgets(STDIN);
}
