<?php

// One step of a recipe, in a process of its own.
// Usage: php recipe.php RECIPE PORT|BASE_URL acquire KEY TTL_MS   prints the proof, or `held`
//        php recipe.php RECIPE PORT|BASE_URL release KEY PROOF    prints `released`, or `lost`

declare(strict_types=1);

require __DIR__ . '/recipes.php';

[, $name, $where, $step, $key, $last] = $argv;
$recipe = recipe($name, $where);
echo match ($step) {
    'acquire' => $recipe->acquire($key, (int) $last) ?? 'held',
    'release' => $recipe->release($key, $last) ? 'released' : 'lost',
}, "\n";
