# frozen_string_literal: true

module LockKeeper
  # The open claims of this process, which leaves none behind at its end.
  module Claims
    @mutex = Mutex.new
    @open = {}
    @pid = nil

    class << self
      def add(claim)
        @mutex.synchronize do
          @open.select! { |one, _| one.own? } # None of the parent's in a forked child.
          @open[claim] = true
          # At the first claim, not at the load: a test runner works in such a block of its own.
          at_exit { end_all } if @pid != Process.pid
          @pid = Process.pid
        end
      end

      def remove(claim)
        @mutex.synchronize { @open.delete(claim) }
      end

      def open
        @mutex.synchronize { @open.keys.select(&:own?) }
      end

      # Ruby kills all threads at the end of the program. Those that work under a lease are killed here,
      # before it is released.
      def end_all
        claims = open
        over = LockKeeper.now + Claim::LONGEST
        workers = claims.filter_map(&:worker).uniq - [Thread.current]
        workers.each(&:kill)
        workers.each { |worker| worker.join([over - LockKeeper.now, 0].max) }
        claims.reject! { |claim| claim.worker&.alive? && claim.worker != Thread.current }
        claims.each(&:finish)
        claims.each { |claim| claim.join([over - LockKeeper.now, 0].max) }
      end
    end
  end
end
