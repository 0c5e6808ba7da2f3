package localredis

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"
)

func TestStart(t *testing.T) {
	t.Run("Flushes", func(t *testing.T) {
		ctx := t.Context()
		s, err := Start(ctx, "always")
		if err != nil {
			t.Fatal(err)
		}
		defer s.Stop()
		client := redis.NewClient(&redis.Options{Network: "unix", Addr: s.Socket()})
		defer client.Close()
		for name, want := range map[string]string{"appendonly": "yes", "appendfsync": "always", "save": "", "port": "0"} {
			got, err := client.ConfigGet(ctx, name).Result()
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(map[string]string{name: want}, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		}
		if err := s.Stop(); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(filepath.Dir(s.Socket())); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("its directory is left: %v", err)
		}
		if err := client.Ping(ctx).Err(); err == nil {
			t.Error("it answers after Stop")
		}
	})
	t.Run("NoProgram", func(t *testing.T) {
		t.Setenv("PATH", t.TempDir())
		if _, err := Start(t.Context(), "always"); !errors.Is(err, ErrNoProgram) {
			t.Errorf("Start = %v, want ErrNoProgram", err)
		}
	})
}
