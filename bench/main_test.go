package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParse(t *testing.T) {
	t.Parallel()
	t.Run("Defaults", func(t *testing.T) {
		t.Parallel()
		o, err := parse(nil, io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]int{1, 8, 32, 64, 128, 256}, o.connections); diff != "" {
			t.Errorf("connections (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]string{"create", "replay-hot", "replay-cold", "get", "replicas", "sweep"}, o.only); diff != "" {
			t.Errorf("scenarios (-want +got):\n%s", diff)
		}
		if o.readWindow() != 3*time.Second || o.readRounds() != 3 {
			t.Errorf("reads have %d rounds of %v", o.readRounds(), o.readWindow())
		}
	})
	t.Run("Short", func(t *testing.T) {
		t.Parallel()
		o, err := parse([]string{"-short", "-rounds", "4"}, io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(scenarioNames(true), o.only); diff != "" {
			t.Errorf("scenarios (-want +got):\n%s", diff)
		}
		if o.rounds != 4 || o.window != 300*time.Millisecond {
			t.Errorf("%d rounds of %v, want the 4 that were asked for, of 300ms", o.rounds, o.window)
		}
	})
	for name, args := range map[string][]string{
		"UnknownScenario": {"-only", "create,crate"},
		"NoNumber":        {"-connections", "1,,8"},
		"NoConnections":   {"-connections", "0"},
		"NoRounds":        {"-rounds", "0"},
		"Word":            {"create"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := parse(args, io.Discard); err == nil {
				t.Errorf("%s was taken", strings.Join(args, " "))
			}
		})
	}
}

func TestRedisVersion(t *testing.T) {
	t.Parallel()
	if got := redisVersion("Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64 build=a\n"); got != "7.0.15" {
		t.Errorf("redisVersion = %q", got)
	}
	if got := redisVersion(""); got != "none" {
		t.Errorf("redisVersion of none = %q", got)
	}
}

func TestHasGroups(t *testing.T) {
	t.Parallel()
	for usage, want := range map[string]bool{"  IDEMPOTENCY_COMMITTERS   how many\n": true, "  IDEMPOTENCY_TTL\n": false} {
		program := filepath.Join(t.TempDir(), "api")
		if err := os.WriteFile(program, []byte("#!/bin/sh\n[ \"$1\" = -h ] && echo '"+usage+"'\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		if got, err := hasGroups(t.Context(), program); err != nil || got != want {
			t.Errorf("hasGroups with %q = %t, %v", usage, got, err)
		}
	}
}
