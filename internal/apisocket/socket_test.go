package apisocket

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/errs"
)

func TestListenMakesItsDirectoryAndRemovesTheSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run", "berth.sock")
	l, err := Listen(t.Context(), Options{Path: path, GID: os.Getgid()})
	if err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]os.FileMode{path: 0o660 | os.ModeSocket, filepath.Dir(path): 0o700 | os.ModeDir} {
		info, err := os.Stat(file)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode() != want {
			t.Errorf("%s has mode %v, want %v", file, info.Mode(), want)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is still there: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Errorf("a second Close gave %v", err)
	}
}

func TestListenReplacesAStaleSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "berth.sock")
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	dead.Close()
	l, err := Listen(t.Context(), Options{Path: path, GID: os.Getgid()})
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
}

func TestListenRefusesASocketInUse(t *testing.T) {
	path := filepath.Join(t.TempDir(), "berth.sock")
	other, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = Listen(ctx, Options{Path: path, GID: os.Getgid()})
	if !errors.Is(err, errs.Exists) || !strings.Contains(err.Error(), "a process serves it") {
		t.Fatalf("got %v", err)
	}
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("the other's socket is gone: %v", err)
	}
}

// TestListenWaitsForAForkedChild: a daemon that is killed between fork and exec leaves a child that has its socket for
// a moment.
func TestListenWaitsForAForkedChild(t *testing.T) {
	path := filepath.Join(t.TempDir(), "berth.sock")
	killed, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	killed.SetUnlinkOnClose(false)
	go func() {
		// The first dial shows that Listen has found the socket served.
		if conn, err := killed.Accept(); err == nil {
			conn.Close()
		}
		killed.Close()
	}()
	l, err := Listen(t.Context(), Options{Path: path, GID: os.Getgid()})
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
}

func TestListenRefusesToReplaceAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "berth.sock")
	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(t.Context(), Options{Path: path, GID: os.Getgid()}); !errors.Is(err, errs.Exists) {
		t.Fatalf("got %v", err)
	}
	if data, err := os.ReadFile(path); err != nil || string(data) != "precious" {
		t.Errorf("the file is now %q, %v", data, err)
	}
}

func TestListenRefusesRelativePaths(t *testing.T) {
	if _, err := Listen(t.Context(), Options{Path: "berth.sock"}); !errors.Is(err, errs.Invalid) {
		t.Fatalf("got %v", err)
	}
}

func TestCloseLeavesAnothersSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "berth.sock")
	ours, err := Listen(t.Context(), Options{Path: path, GID: os.Getgid()})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	theirs, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	if err := ours.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("their socket: %v", err)
	}
}
