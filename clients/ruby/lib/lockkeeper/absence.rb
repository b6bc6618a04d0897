# frozen_string_literal: true

module LockKeeper
  # An absence of the service while a claim is made: for how long it is waited out, as the command line
  # does.
  class Absence
    # All in seconds.
    WITHOUT_WAIT = 5.0 # of a claim whose wait is over, or that does not wait: a restart takes less
    BEFORE_LINE = 60.0 # of one that never stood in line: a machine that starts has no names for so long
    AT_ONCE = 1.0 # of an answer, unless the service has put the claim in line
    FIRST = 5.0 # without an answer until the first warning
    NEXT = 60.0 # from one warning to the next

    def initialize
      @since = nil
      @told = -Float::INFINITY
      @stood = false # in line
    end

    # Takes note of the answer to a call that asked to wait so long; true if it is none of the service.
    def notes?(answer, call, ask)
      if answer.code != "" && answer.status < 500
        @since = nil
        @stood = true
        return false
      end
      was_cut = LockKeeper.now < call.sent + ask
      # A gateway cuts a wait by a 504, and an unreachable service is another status of it.
      is_cut_line = was_cut && answer.was_sent && [0, 504].include?(answer.status)
      @stood ||= is_cut_line && LockKeeper.now >= call.sent + AT_ONCE
      # Until it was cut, the service was there. A suspension of this process is no absence of the service.
      @since ||= was_cut ? LockKeeper.now : [call.sent, LockKeeper.now - ask - Service::ANSWER].max
      true
    end

    # The moment at which a claim is given up whose wait is over at this one.
    def end(over)
      return over unless @since

      [[over, @since + WITHOUT_WAIT].max, @stood ? Float::INFINITY : @since + BEFORE_LINE].min
    end

    # Whether to warn now; then not again for a while.
    def due?
      return false if @since.nil? || LockKeeper.now < [@since + FIRST, @told + NEXT].max

      @told = LockKeeper.now
      true
    end
  end
end
