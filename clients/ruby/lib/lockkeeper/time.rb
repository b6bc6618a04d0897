# frozen_string_literal: true

# The clock and durations.
module LockKeeper
  # Seconds between looks at the clock: timers stand still while the machine is suspended.
  TICK = 0.5

  CLOCK = defined?(Process::CLOCK_BOOTTIME) ? Process::CLOCK_BOOTTIME : Process::CLOCK_MONOTONIC
  UNITS = { "ms" => 0.001, "s" => 1, "m" => 60, "h" => 3600, "d" => 86_400, "" => 1 }.freeze
  private_constant :CLOCK, :UNITS

  # Seconds on the clock that goes on while the machine is suspended, where there is one.
  def self.now
    Process.clock_gettime(CLOCK)
  end

  # Reads a number of seconds, or a text such as "30s", "1.5m" or "1h30m".
  def self.seconds(duration)
    case duration
    when String
      is_text = /\A(?:(?:[0-9]+(?:\.[0-9]+)?(?:ms|s|m|h|d))+|[0-9]+(?:\.[0-9]+)?)\z/.match?(duration)
      parts = duration.scan(/([0-9.]+)([a-z]*)/)
      value = is_text ? parts.sum(0.0) { |number, unit| number.to_f * UNITS[unit] } : -1.0
    else
      # Durations of ActiveSupport are no Numeric by `===`, and by `is_a?` they are.
      is_number = duration.is_a?(Numeric) && duration.respond_to?(:to_f) && !duration.is_a?(Complex)
      raise TypeError, "a duration is a number of seconds, or a text: #{duration.inspect}" unless is_number

      value = duration.to_f
    end
    return value if value >= 0 && value < 1e9

    raise ArgumentError, "expected seconds, or a number and ms, s, m, h or d, as in 30s or 1h30m: " \
                         "#{duration.inspect}"
  end

  def self.pause(attempt, longest = 2.0)
    [0.1 * 2**[attempt, 9].min, longest].min * rand(0.5..1.0)
  end
end
