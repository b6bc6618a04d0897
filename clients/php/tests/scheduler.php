<?php

// Laravel's scheduler and queue on lockkeeper. Stand-ins: an application that is never down, and, where they are not
// installed, cron expressions: every task is due.

// phpcs:disable PSR1.Classes.ClassDeclaration.MultipleClasses

declare(strict_types=1);

namespace Cron {
    if (!class_exists(CronExpression::class)) {
        final class CronExpression
        {
            public function __construct(string $expression)
            {
            }

            public function isDue($time, $zone = null): bool
            {
                return true;
            }
        }
    }
}

namespace Lockkeeper\Tests\Scheduler {
    use Illuminate\Bus\Dispatcher;
    use Illuminate\Cache\ArrayStore;
    use Illuminate\Cache\Repository as Cache;
    use Illuminate\Config\Repository;
    use Illuminate\Console\Scheduling\Schedule;
    use Illuminate\Console\Scheduling\ScheduleClearCacheCommand;
    use Illuminate\Console\Scheduling\ScheduleRunCommand;
    use Illuminate\Container\Container;
    use Illuminate\Contracts\Bus\Dispatcher as DispatcherContract;
    use Illuminate\Contracts\Cache\Repository as CacheContract;
    use Illuminate\Contracts\Container\Container as ContainerContract;
    use Illuminate\Contracts\Debug\ExceptionHandler;
    use Illuminate\Contracts\Events\Dispatcher as EventsContract;
    use Illuminate\Contracts\Queue\ShouldBeUnique;
    use Illuminate\Events\Dispatcher as Events;
    use Illuminate\Queue\InteractsWithQueue;
    use Illuminate\Queue\SyncQueue;
    use Lockkeeper\Laravel\LockkeeperServiceProvider;
    use Symfony\Component\Console\Input\ArrayInput;
    use Symfony\Component\Console\Output\NullOutput;

    final class Application extends Container
    {
        public function isDownForMaintenance(): bool
        {
            return false;
        }

        public function environment(): string
        {
            return 'production';
        }

        public function runningUnitTests(): bool
        {
            return false;
        }

        public function basePath(): string
        {
            return sys_get_temp_dir();
        }
    }

    /** Laravel's context for logs since version 11, which a task gets along. */
    final class Context
    {
        public function dehydrate(): ?array
        {
            return null;
        }
    }

    final class Thrown implements ExceptionHandler
    {
        public function report(\Throwable $e)
        {
            fwrite(STDERR, "$e\n");
        }

        public function shouldReport(\Throwable $e)
        {
            return true;
        }

        public function render($request, \Throwable $e)
        {
            throw $e;
        }

        public function renderForConsole($output, \Throwable $e)
        {
            throw $e;
        }
    }

    /** An application with the provider, and this as config/lockkeeper.php. */
    function application(string $prefix, string $apiKey, float $ttl = 15.0): Application
    {
        $app = new Application();
        Container::setInstance($app);
        $app->instance(ContainerContract::class, $app);
        $url = (string) getenv('LOCKKEEPER_URL');
        $settings = ['url' => $url, 'api_key' => $apiKey, 'prefix' => $prefix, 'schedule' => true, 'ttl' => $ttl];
        $app->instance('config', new Repository(['lockkeeper' => $settings]));
        $app->singleton(EventsContract::class, fn ($app) => new Events($app));
        $app->singleton(DispatcherContract::class, fn ($app) => new Dispatcher($app));
        $app->instance(ExceptionHandler::class, new Thrown());
        $app->instance(CacheContract::class, new Cache(new ArrayStore()));
        $app->instance('Illuminate\Log\Context\Repository', new Context());
        (new LockkeeperServiceProvider($app))->register();
        return $app;
    }

    /** As `artisan schedule:run` does. */
    function run(Application $app, Schedule $schedule): void
    {
        $app->instance(Schedule::class, $schedule);
        $command = new ScheduleRunCommand();
        $command->setLaravel($app);
        $command->run(new ArrayInput([]), new NullOutput());
    }

    /** As `artisan schedule:clear-cache` does. */
    function clear(Application $app, Schedule $schedule): void
    {
        $app->instance(Schedule::class, $schedule);
        $command = new ScheduleClearCacheCommand();
        $command->setLaravel($app);
        $command->run(new ArrayInput([]), new NullOutput());
    }

    /** Does a job as a worker does it. */
    function work(Application $app, object $job): void
    {
        $queue = new SyncQueue();
        $queue->setContainer($app);
        $queue->push($job);
    }

    final class Job
    {
        use InteractsWithQueue;

        public static ?\Closure $does = null;

        /** @param list<object> $through */
        public function __construct(private readonly array $through)
        {
        }

        /** @return list<object> */
        public function middleware(): array
        {
            return $this->through;
        }

        public function handle(): void
        {
            (self::$does)();
        }
    }

    /** A job of which one is in the queue or at work. */
    final class UniqueJob implements ShouldBeUnique
    {
        use InteractsWithQueue;

        public static ?\Closure $via = null;

        public int $uniqueFor = 3600;

        public function __construct(public readonly string $uniqueId)
        {
        }

        public function uniqueVia(): CacheContract
        {
            return (self::$via)();
        }

        public function handle(): void
        {
            (Job::$does)();
        }
    }
}

namespace {
    if (!function_exists('base_path')) {
        function base_path(): string
        {
            return sys_get_temp_dir();
        }
    }
}
