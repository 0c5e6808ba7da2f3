package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// tick is the unit of times in /proc, USER_HZ: 100 on every architecture that Go
// supports, whatever the kernel's own is (proc(5), sysconf(3)).
const tick = 0.01

// stat is what /proc tells of a process.
type stat struct {
	parent int
	own    float64 // CPU seconds, user and system
	reaped float64 // CPU seconds of its children that have ended
}

func readStat(pid int) (stat, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return stat{}, err
	}
	return parseStat(raw)
}

// parseStat reads a line of /proc/[pid]/stat, whose second field stands in
// parentheses and may hold anything, spaces and parentheses included.
func parseStat(raw []byte) (stat, error) {
	fields := bytes.Fields(raw[bytes.LastIndexByte(raw, ')')+1:])
	// From the third on: state, ppid, ..., utime, stime, cutime, cstime.
	const parent, utime, cstime = 1, 11, 14
	if len(fields) <= cstime {
		return stat{}, errors.New("/proc: a stat line is too short")
	}
	number := func(i int) float64 {
		n, _ := strconv.ParseFloat(string(fields[i]), 64) // the kernel's own
		return n
	}
	return stat{
		parent: int(number(parent)),
		own:    tick * (number(utime) + number(utime+1)),
		reaped: tick * (number(cstime-1) + number(cstime)),
	}, nil
}

// cpuSeconds returns what a process and its children have used, those that have
// ended included: a session of PostgreSQL's that ends moves its time to its
// parent's.
func cpuSeconds(pid int) (float64, error) {
	s, err := readStat(pid)
	if err != nil {
		return 0, err
	}
	sum := s.own + s.reaped
	paths, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return 0, err
	}
	for _, path := range paths {
		child, err := strconv.Atoi(filepath.Base(path))
		if err != nil {
			continue
		}
		if c, err := readStat(child); err == nil && c.parent == pid { // it may have ended meanwhile
			sum += c.own + c.reaped
		}
	}
	return sum, nil
}

// residentBytes returns how much memory a process has.
func residentBytes(pid int) (int64, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(raw)) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[0] == "VmRSS:" {
			kib, err := strconv.ParseInt(fields[1], 10, 64)
			return kib << 10, err
		}
	}
	return 0, errors.New("/proc: no VmRSS")
}

// inMemory says whether a directory is on a file system that no disk stands
// behind: what is flushed there is flushed nowhere.
func inMemory(dir string) (bool, error) {
	const tmpfs, ramfs = 0x01021994, 0x858458f6 // statfs(2)
	var fs syscall.Statfs_t
	if err := syscall.Statfs(dir, &fs); err != nil {
		return false, err
	}
	kind := uint32(fs.Type) // a magic number, signed on some machines
	return kind == tmpfs || kind == ramfs, nil
}
