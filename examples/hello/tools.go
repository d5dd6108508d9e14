package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// list prints the names in the given directories.
func list(args []string) int {
	dirs := args[1:]
	if len(dirs) == 0 {
		dirs = []string{"."}
	}
	for _, dir := range dirs {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return fail(args, err)
		}
		for _, entry := range entries {
			fmt.Println(entry.Name())
		}
	}
	return 0
}

// cat copies files, or its input, to its output.
func cat(args []string) int {
	if len(args) == 1 {
		if _, err := io.Copy(os.Stdout, os.Stdin); err != nil {
			return fail(args, err)
		}
	}
	for _, name := range args[1:] {
		file, err := os.Open(name)
		if err != nil {
			return fail(args, err)
		}
		_, err = io.Copy(os.Stdout, file)
		file.Close()
		if err != nil {
			return fail(args, err)
		}
	}
	return 0
}

// environment prints the environment, sorted.
func environment([]string) int {
	all := os.Environ()
	sort.Strings(all)
	fmt.Println(strings.Join(all, "\n"))
	return 0
}

// identity prints who runs it.
func identity([]string) int {
	groups, _ := os.Getgroups()
	fmt.Printf("uid=%d gid=%d groups=%v\n", os.Getuid(), os.Getgid(), groups)
	return 0
}

// hostname prints the name of the pod.
func hostname(args []string) int {
	name, err := os.Hostname()
	if err != nil {
		return fail(args, err)
	}
	fmt.Println(name)
	return 0
}

// sleep waits for so many seconds, for ever with "infinity", and ends on SIGTERM.
func sleep(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if len(args) == 2 && args[1] == "infinity" {
		<-ctx.Done()
		return 128 + int(syscall.SIGTERM)
	}
	if len(args) != 2 {
		return fail(args, fmt.Errorf("want SECONDS or infinity"))
	}
	seconds, err := strconv.ParseFloat(args[1], 64)
	if err != nil {
		return fail(args, err)
	}
	select {
	case <-ctx.Done():
		return 128 + int(syscall.SIGTERM)
	case <-time.After(time.Duration(seconds * float64(time.Second))):
		return 0
	}
}

// processes prints pid and command of each process that it can see.
func processes(args []string) int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return fail(args, err)
	}
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		command, err := os.ReadFile(filepath.Join("/proc", entry.Name(), "cmdline"))
		if err != nil {
			continue // it has ended meanwhile
		}
		fmt.Printf("%5d %s\n", pid, strings.TrimSpace(strings.ReplaceAll(string(command), "\x00", " ")))
	}
	return 0
}
