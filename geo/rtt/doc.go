// Package rtt knows round trips between regions: the published ones of well-known cloud regions, a model for all other
// pairs, and a running estimate of what a node measures itself. It is pure.
//
// # Sources
//
// The matrix holds medians (P50) of thirty days to 9 April 2024 from Microsoft, "Azure network round-trip latency
// statistics" (learn.microsoft.com/azure/networking/azure-network-latency), one direction of each pair. Each of our names
// stands for the Azure region in or near that place; those that lie elsewhere are "mumbai" (Central India, in Pune),
// "stockholm" (Sweden Central, in Gävle) and "oregon" (West US 2, in Quincy, Washington). Two pairs come from elsewhere:
//
//   - singapore and virginia: 253.5 ms, the figure that TippyDB (section 4) takes from P. Bailis and others, Highly
//     Available Transactions: Virtues and Limitations, VLDB 7(3), 2013, who measured it in Amazon's cloud. Microsoft's
//     figure is 223 ms.
//   - california and oregon: 22.5 ms, approximate, from the same table of Bailis; Microsoft's page lacks the pair.
//
// Networks change; whoever needs today's figures writes them into a latency file (package geo/wan).
//
// # Model
//
// Light in glass fibre covers about two thirds of its speed in vacuum, and cables do not follow great circles. For a pair
// that the matrix lacks, Model takes distance * pathFactor there and back at that speed, plus a constant for equipment.
// Both were fitted to the matrix; the test says how well they fit.
package rtt
