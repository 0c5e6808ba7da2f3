# Runs a server and ends it with the process that started this: standard input is a
# pipe whose other end only that process holds, so that it ends when the process
# does, however that happens.
#
# usage: sh -c SCRIPT supervise DIR PROGRAM [ARGUMENT...]
#
# It says the server's process number on standard output. DIR is removed where the
# pipe has ended.
dir=$1
shift

# Whoever signals a whole group must not part us from the server. The system does,
# when our parent has ended and the server is stopped: it sends SIGHUP.
trap '' HUP INT TERM

exec 3<&0 </dev/null 4>&1 >/dev/null 2>&1
"$@" 3<&- 4>&- &
server=$!
echo "$server" >&4
{
	read -r _ <&3
	rm -rf -- "$dir"
	# A server that is stopped ends by no other signal.
	kill -KILL "$server"
} 4>&- &
watcher=$!
exec 3<&-
wait "$server"
kill -KILL "$watcher"
