package taskapi

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
)

// A frame of ttrpc has a header (the length of the data, the id of the stream, type, flags), and data.
const (
	headerSize = 10
	// maxData is the longest data of a frame that ttrpc accepts.
	maxData = 4 << 20

	frameRequest  = 1
	frameResponse = 2
)

type frame struct {
	stream uint32
	kind   byte
	data   []byte
}

func readFrame(r io.Reader) (frame, error) {
	var header [headerSize]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		return frame{}, err
	}
	length := binary.BigEndian.Uint32(header[:4])
	if length > maxData {
		return frame{}, fmt.Errorf("a frame of ttrpc with %d bytes", length)
	}
	f := frame{stream: binary.BigEndian.Uint32(header[4:8]), kind: header[8], data: make([]byte, length)}
	_, err := io.ReadFull(r, f.data)
	return f, err
}

func writeFrame(w net.Conn, f frame) error {
	if len(f.data) > maxData {
		return fmt.Errorf("a message of %d bytes: ttrpc takes %d", len(f.data), maxData)
	}
	buf := make([]byte, headerSize, headerSize+len(f.data))
	binary.BigEndian.PutUint32(buf[:4], uint32(len(f.data))) //nolint:gosec // checked above
	binary.BigEndian.PutUint32(buf[4:8], f.stream)
	buf[8] = f.kind
	_, err := w.Write(append(buf, f.data...))
	return err
}
