# Runs initdb, postgres or one after the other, and ends them with the process
# that started this: standard input is a pipe whose other end only that process
# holds, so that it ends when the process does, however that happens.
#
# usage: sh -c SCRIPT supervise RUN INITDB POSTGRES DATA [ARGUMENT...]
#
# RUN       is removed in the end, unless empty
# INITDB    makes a cluster in DATA, unless empty
# POSTGRES  serves DATA with the arguments, unless empty
run=$1 initdb=$2 postgres=$3 data=$4
shift 4

# Whoever signals a whole group must not part us from the server. Both programs
# install handlers of their own.
trap '' HUP INT TERM

# What the shell itself says, such as "Killed", is not for the server's log.
exec 3<&0 </dev/null 4>&2 2>/dev/null

supervise() {
	"$@" 2>&4 3<&- 4>&- &
	program=$!
	{
		read -r _ <&3
		# To postgres SIGINT is a fast shutdown, SIGQUIT an immediate one, after
		# which it recovers from its log.
		kill -INT "$program"
		for _ in 1 2 3 4 5 6 7 8 9 10; do sleep 1; done
		kill -QUIT "$program"
	} >/dev/null 4>&- &
	watcher=$!
	wait "$program"
	status=$?
	kill -KILL "$watcher"
	wait "$watcher"
	return "$status"
}

status=0
if [ -n "$initdb" ]; then
	# What is in RUN goes with it, and need not be waited for to reach the disk.
	supervise "$initdb" -D "$data" -U intentd --auth=trust -E UTF8 --no-locale \
		--no-instructions ${run:+--no-sync}
	status=$?
fi
if [ "$status" -eq 0 ] && [ -n "$postgres" ]; then
	supervise "$postgres" -D "$data" "$@"
	status=$?
fi
if [ -n "$run" ]; then
	rm -rf -- "$run"
fi
exit "$status"
