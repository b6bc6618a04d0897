<?php

// The package itself, and the frameworks as far as Composer or Debian has installed them.

declare(strict_types=1);

spl_autoload_register(static function (string $class): void {
    $places = ['Lockkeeper\\Tests\\' => __DIR__ . '/', 'Lockkeeper\\' => dirname(__DIR__) . '/src/'];
    foreach ($places as $space => $place) {
        if (str_starts_with($class, $space)) {
            require $place . strtr(substr($class, strlen($space)), '\\', '/') . '.php';
            return;
        }
    }
});
if (is_file(dirname(__DIR__) . '/vendor/autoload.php')) {
    require dirname(__DIR__) . '/vendor/autoload.php';
} else {
    $symfony = ['Lock', 'Semaphore', 'Console', 'DependencyInjection', 'EventDispatcher', 'Messenger'];
    $symfony = [...$symfony, 'VarDumper', 'Yaml'];
    $symfony = [...array_map(fn ($part) => "Component/$part", $symfony), 'Bundle/FrameworkBundle'];
    $parts = ['Cache', 'Config', 'Container', 'Console', 'Queue', 'Bus', 'Events', 'Pipeline'];
    $parts = array_map(fn ($part) => "Illuminate/$part", $parts);
    foreach ([...array_map(fn ($part) => "Symfony/$part", $symfony), ...$parts] as $part) {
        $installed = "/usr/share/php/$part/autoload.php";
        if (is_file($installed)) {
            require_once $installed;
        }
    }
}
