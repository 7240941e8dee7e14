Figures.start();
