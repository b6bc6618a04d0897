# frozen_string_literal: true

module LockKeeper
  # The open claims of this process, which leaves none behind at its end.
  module Claims
    LOOK = 0.05 # seconds between looks at the threads that stop

    @mutex = Mutex.new
    @open = {}
    @pid = nil
    @ending = nil # the thread that ends the program, once it has begun to

    class << self
      def add(claim)
        @mutex.synchronize do
          @open.select! { |one, _| one.own? } # None of the parent's in a forked child.
          @ending = nil if @pid != Process.pid
          # The end does not know of this claim.
          raise WaitCancelled, "the program ends; nothing is held" if @ending && @ending != Thread.current

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

      # Ruby kills all threads at the end of the program. Those that work in a block are killed here, before
      # its lease is released. Those with a lease without a block are told to stop.
      def end_all
        @mutex.synchronize { @ending = Thread.current }
        claims = open
        over = LockKeeper.now + Claim::LONGEST
        others = claims.select(&:elsewhere?).each(&:stop)
        workers = claims.filter_map(&:worker).uniq - [Thread.current]
        workers.each(&:kill)
        workers.each { |worker| worker.join([over - LockKeeper.now, 0].max) }
        claims.reject! { |claim| claim.worker&.alive? && claim.worker != Thread.current }
        (claims - others).each(&:finish)
        loop do
          at_work = (others & open).select(&:elsewhere?)
          (others - at_work).each(&:finish) # Their threads have ended.
          break if at_work.empty? || LockKeeper.now >= over

          sleep LOOK
        end
        claims.each { |claim| claim.join([over - LockKeeper.now, 0].max) }
      end
    end
  end
end
