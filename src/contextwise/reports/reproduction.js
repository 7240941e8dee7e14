"use strict";
Figures.start();
