#!/bin/bash
# Trains the shipped networks on MNIST, a network in two or three trainings. Paths are relative to the project's root.
#
# 5,000 training images are held out. The first training sees MNIST's own pens; the next ones, from its weights, pens,
# scanners and cameras that MNIST has not (models/pens.py). Each checkpoint contains its last command. Nothing was chosen
# by MNIST's test images, scikit-learn's digits or fonts.
set -eu

SHARED="--dataset mnist --batch-size 128 --schedule one-cycle --weight-decay 0.05 --clip 1 --hold-out 5000"

# First, with the options of recipe.json or with elastic maps.
train() { name=$1; shift; vitbn train $SHARED --output checkpoints/first/$name.safetensors "$@"; }
OLD="--lr 0.0015 --label-smoothing 0.05 --augment light --precision bf16"
TAUGHT="--teacher checkpoints/first/cnn.safetensors"
ELASTIC="--lr 0.003 --augment elastic --ema 0.999 $TAUGHT"
train cnn             $OLD --model cnn --epochs 12
train vit             $OLD --model vit --epochs 36 --last-block all $TAUGHT
train vitbnffn        $OLD --model vitbnffn --epochs 36 --last-block all $TAUGHT
train vitbn           $OLD --model vitbn --epochs 36 --last-block all
train vitbn-tiny      $OLD --depth 1 --epochs 40 --last-block all
train vitbn-wide      $ELASTIC --depth 1 --heads 32 --dim-head 16 --mlp-dim 256 --epochs 30 --precision bf16
train vitbn-late-64   $ELASTIC --depth 2 --heads 4 --mlp-dim 256 --class-attention 32 16 --epochs 40 --seed 2 \
    --teacher-cache checkpoints/elastic
train vitbn-late-deep $ELASTIC --depth 4 --heads 4 --class-attention 32 16 --epochs 40 \
    --teacher-cache checkpoints/elastic

# The teacher of all others.
vitbn train $SHARED --augment pens --model cnn --epochs 3 --lr 0.001 --precision bf16 --ema 0.998 \
    --init checkpoints/first/cnn.safetensors --output models/pretrained/cnn.safetensors

# Its students. checkpoints/pens keeps the distorted images and its answers: only the first student of an epoch waits for
# them. The networks designed for speed standardise each picture (one LayerNormalization more, 0 to 5 % of the time);
# those in the published geometry do not.
pens() {
    name=$1; init=$2; out=$3; shift 3
    vitbn train $SHARED --augment pens --teacher models/pretrained/cnn.safetensors \
        --teacher-cache checkpoints/pens --init $init/$name.safetensors --output $out/$name.safetensors "$@"
}
FIRST=checkpoints/first SECOND=checkpoints/second LAST=models/pretrained
SIX="--lr 0.001 --ema 0.998 --precision bf16"
WIDE="--depth 1 --heads 32 --dim-head 16 --mlp-dim 256 --standardise --ema 0.999"
LATE="--heads 4 --class-attention 32 16 --standardise --ema 0.999 --precision bf16"
vitbn train $SHARED $SIX --augment pens --epochs 5 --label-smoothing 0.05 \
    --init $FIRST/vitbn.safetensors --output $SECOND/vitbn.safetensors
pens vitbn           $SECOND $LAST   $SIX --epochs 6
pens vit             $FIRST  $LAST   $SIX --model vit --epochs 5
pens vitbnffn        $FIRST  $LAST   $SIX --model vitbnffn --epochs 5
pens vitbn-wide      $FIRST  $SECOND $WIDE --epochs 12 --lr 0.002
pens vitbn-wide      $SECOND $LAST   $WIDE --epochs 14 --lr 0.0015 --seed 1
pens vitbn-late-64   $FIRST  $SECOND $LATE --depth 2 --mlp-dim 256 --epochs 12 --lr 0.002
pens vitbn-late-64   $SECOND $LAST   $LATE --depth 2 --mlp-dim 256 --epochs 14 --lr 0.0015 --seed 1
pens vitbn-late-deep $FIRST  $LAST   $LATE --depth 4 --epochs 8 --lr 0.0015
pens vitbn-tiny      $FIRST  $LAST   --depth 1 --epochs 12 --lr 0.002 --ema 0.999
