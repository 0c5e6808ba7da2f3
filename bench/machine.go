package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// machine is what the numbers were measured on.
type machine struct {
	CPU        string `json:"cpu"`
	Cores      int    `json:"cores"`
	Memory     int64  `json:"memory_bytes"`
	Kernel     string `json:"kernel"`
	Flush      string `json:"fdatasync"`
	PostgreSQL string `json:"postgresql"`
	Redis      string `json:"redis"`
	Go         string `json:"go"`
	Service    string `json:"service"`
	Date       string `json:"date"`
}

func describeMachine(ctx context.Context, source string) (machine, error) {
	m := machine{Cores: runtime.NumCPU(), Go: runtime.Version(), Date: time.Now().UTC().Format(time.DateOnly)}
	for path, of := range map[string]func(name, value string){
		"/proc/cpuinfo": func(name, value string) {
			if name == "model name" {
				m.CPU = value
			}
		},
		"/proc/meminfo": func(name, value string) {
			if name == "MemTotal" {
				kib, _ := strconv.ParseInt(strings.TrimSuffix(value, " kB"), 10, 64) // the kernel's own
				m.Memory = kib << 10
			}
		},
	} {
		raw, err := os.ReadFile(path)
		if err != nil {
			return m, err
		}
		for line := range strings.Lines(string(raw)) {
			name, value, _ := strings.Cut(line, ":")
			of(strings.TrimSpace(name), strings.TrimSpace(value))
		}
	}
	kernel, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return m, err
	}
	m.Kernel = string(bytes.TrimSpace(kernel))
	said, err := exec.CommandContext(ctx, "redis-server", "--version").Output()
	if err != nil && !errors.Is(err, exec.ErrNotFound) { // scenarios without it do without it
		return m, err
	}
	m.Redis = redisVersion(string(said))
	describe := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty", "--tags")
	describe.Dir = source
	if said, err = describe.Output(); err == nil { // a source without a history has no name
		m.Service = string(bytes.TrimSpace(said))
	}
	return m, nil
}

// redisVersion finds the version in what redis-server --version says.
func redisVersion(said string) string {
	for field := range strings.FieldsSeq(said) {
		if v, ok := strings.CutPrefix(field, "v="); ok {
			return v
		}
	}
	return "none"
}

// flushTime says how long the disk takes for what each commit waits for: a page
// written and flushed, where the private server's data are.
func flushTime() (string, error) {
	const times = 200
	f, err := os.CreateTemp("", "bench-flush-")
	if err != nil {
		return "", err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	page := make([]byte, 8192)
	var took []time.Duration
	for range times {
		began := time.Now()
		if _, err := f.WriteAt(page, 0); err != nil {
			return "", err
		}
		if err := syscall.Fdatasync(int(f.Fd())); err != nil {
			return "", err
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	return fmt.Sprintf("p50 %v, p99 %v", percentile(took, 0.5).Round(10*time.Microsecond), percentile(took, 0.99).Round(10*time.Microsecond)), nil
}
