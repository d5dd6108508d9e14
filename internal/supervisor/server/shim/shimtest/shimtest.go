// Package shimtest has shims for tests, most of which do not what they should. The test's own program is the shim: its
// TestMain calls Ran. Write makes the program that a handler names.
package shimtest

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	sandbox "github.com/containerd/containerd/api/runtime/sandbox/v1"
	task "github.com/containerd/containerd/api/runtime/task/v2"
	"github.com/containerd/ttrpc"

	"github.com/berthrun/berth/internal/supervisor/server/shim/taskapi"
)

// Role is the first argument of the test's program as a shim. The second one is its fault, and the others are those of
// a shim.
const Role = "fake-shim"

// The environment variables of a shim: the directory of its files, the program of a real shim, "" for none, the address
// of the real shim, and the id of the pod.
const (
	dirVariable     = "FAKE_DIR"
	realVariable    = "FAKE_REAL"
	addressVariable = "FAKE_REAL_ADDRESS"
	idVariable      = "FAKE_ID"
)

// Write makes the program of a shim. Its files are in dir, and all of its processes have FAKE_DIR=dir in their
// environment. It passes the calls of the task API to the shim real, but for the fault; "" for none.
func Write(program, dir, real, fault string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	text := fmt.Sprintf("#!/bin/sh\nexport %s=%s %s=%s\nexec %s %s %s \"$@\"\n", dirVariable, dir, realVariable, real, self, Role, fault)
	return os.WriteFile(program, []byte(text), 0o755)
}

// Ran runs this process as a shim, if it is one. It returns true at the end of one.
func Ran() bool {
	if len(os.Args) < 4 || os.Args[1] != Role {
		return false
	}
	if err := run(os.Args[2], os.Args[3:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return true
}

// run is the main function of a shim. Its `start` leaves a server, and prints its address.
func run(fault string, args []string) error {
	if args[0] == "serve" {
		return serve(fault)
	}
	id := argument(args, "-id")
	if err := os.Setenv(idVariable, id); err != nil {
		return err
	}
	if isSandbox(fault) && args[len(args)-1] == "delete" {
		return os.WriteFile(file(id, deletedName), []byte(strings.Join(args, " ")), 0o600)
	}
	if os.Getenv(realVariable) != "" {
		if ended, err := runReal(args); ended || err != nil {
			return err
		}
	}
	if args[len(args)-1] != "start" {
		return nil // delete
	}
	socket := file(id, "sock")
	listener, err := net.Listen("unix", socket) //nolint:noctx // it returns at once
	if err != nil {
		return err
	}
	f, err := listener.(*net.UnixListener).File()
	if err != nil {
		return err
	}
	server := exec.CommandContext(context.Background(), "/proc/self/exe", Role, fault, "serve")
	server.ExtraFiles = []*os.File{f}
	server.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := server.Start(); err != nil {
		return err
	}
	fmt.Print("unix://" + socket)
	return nil
}

// argument returns the value of a shim's argument.
func argument(args []string, name string) string {
	if at := slices.Index(args, name); at >= 0 && at+1 < len(args) {
		return args[at+1]
	}
	return ""
}

// file is a file of the shim of a pod.
func file(id, name string) string { return fileIn(os.Getenv(dirVariable), id, name) }

func fileIn(dir, id, name string) string {
	return filepath.Join(dir, fmt.Sprintf("%.12s.%s", id, name)) // as a path of a socket is short
}

// runReal runs the program of the real shim. It returns false after a `start`.
func runReal(args []string) (ended bool, err error) {
	cmd := exec.CommandContext(context.Background(), os.Getenv(realVariable), args...)
	cmd.Stdin, cmd.Stderr = os.Stdin, os.Stderr
	output, err := cmd.Output()
	if err != nil || args[len(args)-1] != "start" {
		fmt.Print(string(output))
		return true, err
	}
	address, err := taskapi.ParseStart(output)
	if err != nil {
		return true, err
	}
	return false, os.Setenv(addressVariable, address.Socket)
}

func serve(fault string) error {
	// What this process starts has the descriptor, too, and with it the socket of a shim that has ended.
	listener, err := net.FileListener(os.NewFile(3, "listener"))
	if err != nil {
		return err
	}
	switch fault {
	case "deaf":
		time.Sleep(time.Hour)
	case "garbage":
		for {
			conn, err := listener.Accept()
			if err != nil {
				return err
			}
			fmt.Fprint(conn, "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\nthis is no ttrpc")
			conn.Close()
		}
	}
	server, err := ttrpc.NewServer()
	if err != nil {
		return err
	}
	var tasks task.TTRPCTaskService = &badTasks{fault: fault}
	if os.Getenv(realVariable) != "" {
		if tasks, err = realTasks(fault); err != nil {
			return err
		}
	}
	task.RegisterTTRPCTaskService(server, tasks)
	if isSandbox(fault) {
		sandbox.RegisterTTRPCSandboxService(server, newSandboxes(fault, tasks))
	}
	return server.Serve(context.Background(), listener)
}
