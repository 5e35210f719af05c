package freeport

import (
	"net"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/rhumbdb/rhumb"
)

// TestTake guards that no address is returned twice, and that connections get none of them.
func TestTake(t *testing.T) {
	low := 49152
	// Only Linux has the file.
	if b, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range"); err == nil {
		if low, err = strconv.Atoi(strings.Fields(string(b))[0]); err != nil {
			t.Fatal(err)
		}
	}
	seen := map[string]bool{}
	for range 50 {
		addrs, err := Take(8)
		if err != nil || len(addrs) != 8 {
			t.Fatal(addrs, err)
		}
		for _, a := range addrs {
			_, port, err := net.SplitHostPort(a)
			if err != nil {
				t.Fatal(err)
			}
			if n, err := strconv.Atoi(port); err != nil || n >= low {
				t.Errorf("%s is in the ephemeral range, from %d on: %v", a, low, err)
			}
			if seen[a] {
				t.Errorf("%s was returned twice", a)
			}
			seen[a] = true
		}
	}
}

// TestTakeSkips guards that ports are not returned that somebody listens on, for TCP or UDP.
func TestTakeSkips(t *testing.T) {
	addrs, err := Take(2)
	if err != nil {
		t.Fatal(err)
	}
	tcp, err := net.Listen("tcp", addrs[0])
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	udp, err := net.ListenPacket("udp", addrs[1])
	if err != nil {
		t.Fatal(err)
	}
	defer udp.Close()
	for _, a := range addrs {
		_, text, _ := net.SplitHostPort(a)
		port, err := strconv.Atoi(text)
		if err != nil {
			t.Fatal(err)
		}
		taken = map[int]bool{} // or the port would be skipped because Take has returned it
		if got, err := take(1, port, port+1); rhumb.KindOf(err) != rhumb.Unavailable || got != nil {
			t.Errorf("%s is in use and was returned: %v, %v", a, got, err)
		}
	}
}
