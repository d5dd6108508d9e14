package streaming

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/streaming/pkg/httpstream/wsstream"
)

// Current clients speak version 5 of the WebSocket protocol, and the library's server does not.
// Version 5 is version 4 with a signal that closes a channel, so that a client can end the
// command's input.

// serveV5 connects the channels of a WebSocket to run and sends the client its status.
func (s *Server) serveV5(w http.ResponseWriter, r *http.Request, wanted *remotecommand.Options,
	run func(in io.Reader, out, errOut io.WriteCloser, resize <-chan remotecommand.TerminalSize) error,
) {
	channels := make([]wsstream.ChannelType, remotecommand.StreamResize+1)
	for number, kind := range map[int]wsstream.ChannelType{
		remotecommand.StreamStdIn:  onlyIf(wanted.Stdin, wsstream.ReadChannel),
		remotecommand.StreamStdOut: onlyIf(wanted.Stdout, wsstream.WriteChannel),
		remotecommand.StreamStdErr: onlyIf(wanted.Stderr, wsstream.WriteChannel),
		remotecommand.StreamErr:    wsstream.WriteChannel,
		remotecommand.StreamResize: onlyIf(wanted.TTY, wsstream.ReadChannel),
	} {
		channels[number] = kind
	}
	conn := wsstream.NewConn(map[string]wsstream.ChannelProtocolConfig{
		remotecommand.StreamProtocolV5Name: {Binary: true, Channels: channels},
	})
	conn.SetIdleTimeout(s.idleTimeout())
	_, streams, err := conn.Open(w, r)
	if err != nil {
		s.opts.Log.DebugContext(r.Context(), "cannot complete the handshake of a WebSocket client", "error", err)
		return
	}
	defer conn.Close()
	err = run(streams[remotecommand.StreamStdIn], streams[remotecommand.StreamStdOut], streams[remotecommand.StreamStdErr],
		readSizes(r.Context(), streams[remotecommand.StreamResize]))
	if err := writeStatus(streams[remotecommand.StreamErr], err); err != nil && r.Context().Err() == nil {
		s.opts.Log.WarnContext(r.Context(), "cannot send the status of a session to its client", "error", err)
	}
}

func onlyIf(wanted bool, kind wsstream.ChannelType) wsstream.ChannelType {
	if wanted {
		return kind
	}
	return wsstream.IgnoreChannel
}

// readSizes decodes terminal sizes until the channel or ctx ends.
func readSizes(ctx context.Context, from io.Reader) <-chan remotecommand.TerminalSize {
	sizes := make(chan remotecommand.TerminalSize)
	go func() {
		defer close(sizes)
		decoder := json.NewDecoder(from)
		for {
			var size remotecommand.TerminalSize
			if err := decoder.Decode(&size); err != nil {
				return
			}
			select {
			case sizes <- size:
			case <-ctx.Done():
				return
			}
		}
	}()
	return sizes
}

// writeStatus writes how the session ended, as a Kubernetes Status.
func writeStatus(to io.Writer, sessionErr error) error {
	status := metav1.Status{Status: metav1.StatusSuccess}
	var exit exitStatus
	switch {
	case errors.As(sessionErr, &exit):
		status.Status = metav1.StatusFailure
		status.Reason = remotecommand.NonZeroExitCodeReason
		status.Message = fmt.Sprintf("command terminated with non-zero exit code: %v", exit)
		status.Details = &metav1.StatusDetails{Causes: []metav1.StatusCause{{
			Type: remotecommand.ExitCodeCauseType, Message: strconv.Itoa(exit.ExitStatus()),
		}}}
	case sessionErr != nil:
		status.Status = metav1.StatusFailure
		status.Reason = metav1.StatusReasonInternalError
		status.Code = http.StatusInternalServerError
		status.Message = sessionErr.Error()
	}
	data, err := json.Marshal(&status)
	if err != nil {
		return err
	}
	_, err = to.Write(data)
	return err
}

// serveExec serves an exec over the client's protocol.
func (s *Server) serveExec(w http.ResponseWriter, r *http.Request, containerID string, cmd []string, wanted *remotecommand.Options) {
	do := session{s.opts.Runtime, wanted, s.opts.Log}
	if !wsstream.IsWebSocketRequestWithStreamCloseProtocol(r) {
		remotecommand.ServeExec(w, r, do, "", "", containerID, cmd, wanted,
			s.idleTimeout(), s.opts.CreationTimeout, remotecommand.SupportedStreamingProtocols)
		return
	}
	s.serveV5(w, r, wanted, func(in io.Reader, out, errOut io.WriteCloser, resize <-chan remotecommand.TerminalSize) error {
		return do.ExecInContainer(r.Context(), "", "", containerID, cmd, in, out, errOut, wanted.TTY, resize, time.Duration(0))
	})
}

// serveAttach serves an attachment over the client's protocol.
func (s *Server) serveAttach(w http.ResponseWriter, r *http.Request, containerID string, wanted *remotecommand.Options) {
	do := session{s.opts.Runtime, wanted, s.opts.Log}
	if !wsstream.IsWebSocketRequestWithStreamCloseProtocol(r) {
		remotecommand.ServeAttach(w, r, do, "", "", containerID, wanted,
			s.idleTimeout(), s.opts.CreationTimeout, remotecommand.SupportedStreamingProtocols)
		return
	}
	s.serveV5(w, r, wanted, func(in io.Reader, out, errOut io.WriteCloser, resize <-chan remotecommand.TerminalSize) error {
		return do.AttachContainer(r.Context(), "", "", containerID, in, out, errOut, wanted.TTY, resize)
	})
}
