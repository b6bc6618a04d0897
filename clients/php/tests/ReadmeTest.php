<?php

declare(strict_types=1);

namespace Lockkeeper\Tests;

use Illuminate\Console\Scheduling\EventMutex;
use Illuminate\Console\Scheduling\SchedulingMutex;

/** README.md does what it says: what its blocks print stands behind `// prints`. */
final class ReadmeTest extends TestCase
{
    private const LARAVEL = <<<'PHP'
        function env($name, $default = null) { return getenv($name) ?: $default; }
        require %s;
        $app = new Illuminate\Container\Container();
        Illuminate\Support\Facades\Facade::setFacadeApplication($app);
        $app->instance('config', new Illuminate\Config\Repository(['cache' => ['prefix' => ''] + require %s]));
        $app['config']->set('cache.stores.redis', ['driver' => 'array']);
        $app->singleton('cache', fn ($app) => new Illuminate\Cache\CacheManager($app));
        (new Lockkeeper\Laravel\LockkeeperServiceProvider($app))->register();
        PHP;

    private const KERNEL = <<<'PHP'
        <?php
        require %s;
        use Symfony\Component\DependencyInjection\Loader\Configurator\ContainerConfigurator;
        use Symfony\Component\Lock\LockFactory;

        final class Report
        {
            public function __construct(public readonly LockFactory $locks)
            {
            }
        }

        final class Application extends Symfony\Component\HttpKernel\Kernel
        {
            use Symfony\Bundle\FrameworkBundle\Kernel\MicroKernelTrait;

            public function registerBundles(): iterable
            {
                return [new Symfony\Bundle\FrameworkBundle\FrameworkBundle()];
            }

            public function getProjectDir(): string
            {
                return __DIR__;
            }

            private function configureContainer(ContainerConfigurator $container): void
            {
                $framework = ['secret' => 'x', 'http_method_override' => false, 'lock' => 'flock'];
                $container->extension('framework', $framework);
                $container->import(__DIR__ . '/services.yaml');
                $container->services()->set(Report::class, Report::class)->autowire()->public();
                $container->services()->alias('limiter', 'lock.factory')->public();
            }

            private function configureRoutes(): void
            {
            }
        }

        $application = new Application('prod', false);
        $application->boot();
        $get = [$application->getContainer(), 'get'];
        foreach ([$get(Report::class)->locks, $get('limiter')] as $locks) {
            echo json_encode($locks->createLock($argv[1], 30, false)->acquire());
        }
        PHP;

    private string $directory;

    protected function setUp(): void
    {
        $this->directory = sys_get_temp_dir() . '/' . bin2hex(random_bytes(8));
        mkdir($this->directory);
    }

    protected function tearDown(): void
    {
        exec('rm -r ' . escapeshellarg($this->directory));
    }

    public function testEveryBlockDoesWhatItSays(): void
    {
        preg_match_all('/^```php\n(.*?)^```$/ms', self::text(), $blocks);
        self::assertCount(11, $blocks[1]);
        foreach ($blocks[1] as $block) {
            if (preg_match('~^// config/(\w+\.php)$~m', $block, $file)) {
                file_put_contents("{$this->directory}/$file[1]", "<?php return [\n$block];");
                continue;
            }
            preg_match_all('~// prints (.*)$~m', $block, $prints);
            self::assertNotEmpty($prints[1], $block);
            self::assertSame([0, implode("\n", $prints[1]) . "\n", ''], $this->does($block), $block);
        }
    }

    public function testASchedulerIsWiredAsItSays(): void
    {
        preg_match('~^```php\n// config/lockkeeper.php\n(.*?)^```$~ms', self::text(), $block);
        $env = fn (string $name, ?string $default = null) => $default;
        $settings = eval('return [' . str_replace('env(', '$env(', $block[1]) . '];');
        $app = new \Illuminate\Container\Container();
        $app->instance('config', new \Illuminate\Config\Repository(['lockkeeper' => $settings]));
        (new \Lockkeeper\Laravel\LockkeeperServiceProvider($app))->register();
        foreach ([EventMutex::class => 'Event', SchedulingMutex::class => 'Scheduling'] as $mutex => $name) {
            self::assertInstanceOf("Lockkeeper\\Laravel\\Lockkeeper{$name}Mutex", $app->make($mutex));
        }
    }

    public function testASymfonyApplicationIsWiredAsItSays(): void
    {
        preg_match('/^```yaml\n(.*?)^```$/ms', self::text(), $block);
        file_put_contents("{$this->directory}/services.yaml", $block[1]);
        $bootstrap = var_export(__DIR__ . '/bootstrap.php', true);
        file_put_contents("{$this->directory}/kernel.php", sprintf(self::KERNEL, $bootstrap));
        $command = [PHP_BINARY, "{$this->directory}/kernel.php", $key = self::key()];
        $process = proc_open($command, [1 => ['pipe', 'w'], 2 => ['pipe', 'w']], $pipes);
        self::assertSame(['truefalse', ''], array_values(array_map('stream_get_contents', $pipes)));
        self::assertSame(0, proc_close($process));
        self::assertTrue($this->client()->inspect($key)->isHeld);
    }

    public function testComposerInstallsACopyOfThePackage(): void
    {
        $copy = ['type' => 'path', 'url' => dirname(__DIR__)];
        $wish = ['lockkeeper/lockkeeper' => '@dev'];
        $project = json_encode(['repositories' => [$copy, ['packagist.org' => false]], 'require' => $wish]);
        file_put_contents("{$this->directory}/composer.json", $project);
        $here = ['COMPOSER_ALLOW_SUPERUSER' => '1', 'COMPOSER_HOME' => "{$this->directory}/home"] + getenv();
        $pipes = [1 => ['file', '/dev/null', 'w'], 2 => ['pipe', 'w']];
        $composer = proc_open(['composer', 'install', '-q', '-n'], $pipes, $pipes, $this->directory, $here);
        $complaint = stream_get_contents($pipes[2]);
        self::assertSame([0, ''], [proc_close($composer), $complaint]);
        $autoload = var_export("{$this->directory}/vendor/autoload.php", true);
        $script = "require $autoload; new Lockkeeper\\LockClient('http://localhost'); echo 'there';";
        self::assertSame('there', shell_exec(PHP_BINARY . ' -r ' . escapeshellarg($script)));
    }

    private static function text(): string
    {
        return file_get_contents(dirname(__DIR__) . '/README.md');
    }

    /** @return array{int, string, string} exit code, and what it prints */
    private function does(string $block): array
    {
        $bootstrap = var_export(__DIR__ . '/bootstrap.php', true);
        $block = str_replace("'http://localhost:8080'", var_export(self::env('URL'), true), $block);
        $block = str_replace("'vendor/autoload.php'", $bootstrap, $block, $isPlain);
        $laravel = sprintf(self::LARAVEL, $bootstrap, var_export("{$this->directory}/cache.php", true));
        $uses = preg_match_all('/^use .*\n/m', $block, $found) ? implode($found[0]) : '';
        $block = $isPlain ? $block : "<?php\n{$uses}{$laravel}" . preg_replace('/^(use .*|<\?php)\n/m', '', $block);
        file_put_contents("{$this->directory}/block.php", $block);
        $command = [PHP_BINARY, '-d', 'display_errors=stderr', '-d', 'error_reporting=-1'];
        $command[] = "{$this->directory}/block.php";
        $process = proc_open($command, [1 => ['pipe', 'w'], 2 => ['pipe', 'w']], $pipes);
        $printed = array_map('stream_get_contents', $pipes);
        return [proc_close($process), $printed[1], $printed[2]];
    }
}
